//! A pseudo-terminal for tests of what people see.
#![cfg(unix)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A program on a terminal of its own.
pub struct Pty {
    child: Child,
    master: File,
    /// The program's side, which keeps its settings when the program has ended.
    slave: OwnedFd,
    said: Arc<Mutex<Vec<u8>>>,
}

/// Nothing here takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

impl Pty {
    /// Starts `command` on a terminal of that size, with colours unless `command` says otherwise.
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let mut size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the two numbers and the size outlive the call, which writes to the numbers alone;
        // no name and no settings are asked for. Nothing else owns the descriptors that the call
        // opens.
        #[allow(unsafe_code)]
        let (master, slave) = unsafe {
            let opened =
                libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null_mut(), &raw mut size);
            assert_eq!(opened, 0, "a pseudo-terminal");
            // No child may inherit it: its end is that of the last copy.
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
            (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        for variable in ["CLICOLOR", "CLICOLOR_FORCE", "KILN_CHILD"] {
            command.env_remove(variable);
        }
        let side = || Stdio::from(slave.try_clone().unwrap());
        let child = command.env("TERM", "xterm-256color").stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, heard) = (master.try_clone().unwrap(), said.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                heard.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, master, slave, said }
    }

    /// Everything that has been shown.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    /// Waits until `text` has been shown.
    pub fn wait_for(&self, text: &str) {
        let start = Instant::now();
        while !self.text().contains(text) {
            assert!(start.elapsed() < PATIENCE, "{text:?} was not shown in\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types `keys`.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, as `-TERM`.
    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for the end of the program.
    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // The last output of the process may still be on its way to the reader.
                std::thread::sleep(Duration::from_millis(100));
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the terminal shows what is typed and waits for whole lines, as a shell expects it.
    pub fn is_restored(&self) -> bool {
        use std::os::fd::AsRawFd;
        // SAFETY: the structure is plain data of C, for which zeroes are a value, and outlives the
        // call that writes to it.
        #[allow(unsafe_code)]
        let settings = unsafe {
            let mut settings = std::mem::zeroed::<libc::termios>();
            assert_eq!(libc::tcgetattr(self.slave.as_raw_fd(), &mut settings), 0);
            settings
        };
        settings.c_lflag & (libc::ECHO | libc::ICANON) == libc::ECHO | libc::ICANON
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
