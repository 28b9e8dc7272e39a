//! `kiln cache export` and `kiln cache import`: the kernels that the compiled engine has compiled
//! and tuned, as one tar archive with its provenance, so that another machine of the same kind
//! starts warm. An import refuses kernels that were tuned for another version, device or driver:
//! they would be slow, or wrong.
//!
//! The archive: `kiln-cache.json` (the [`Manifest`]) first, then `kernels/NAME` for each file that
//! it lists. An import unpacks beside the cache, checks every size and SHA-256, and only then moves
//! the files into place.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use kiln::build_info::BURN_VERSION;
use kiln_core::error::{Error, Result};
use kiln_core::files::hex;
use kiln_core::host;
use kiln_core::whole_file::WholeFile;
use kiln_core::words::json_words;
use kiln_data::cache::{KERNELS, list};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The manifest's name in the archive.
const MANIFEST: &str = "kiln-cache.json";

/// The value of [`Manifest::schema`].
const SCHEMA: &str = "kiln.kernel-cache/1";

/// The most bytes of a manifest. A real one has a few hundred, so a larger file is refused unread.
const MAX_MANIFEST: u64 = 1 << 20;

/// Where kernels came from, and which files hold them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of the archive.
    pub schema: String,
    /// Kiln's version.
    pub kiln: String,
    /// Burn's version.
    pub burn: String,
    /// The devices that kernels are compiled for, by kind and name; the CPU has none.
    pub devices: Vec<String>,
    /// The driver, where the system tells.
    pub driver: Option<String>,
    /// Operating system and architecture.
    pub system: String,
    /// The files.
    pub files: Vec<Packed>,
}

/// A file of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Its name, without a folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes, as hexadecimal digits.
    pub sha256: String,
}

impl Manifest {
    /// The manifest of this build on this machine, with `files`.
    fn here(devices: &[String], files: Vec<Packed>) -> Self {
        Self {
            schema: SCHEMA.into(),
            kiln: env!("CARGO_PKG_VERSION").into(),
            burn: BURN_VERSION.into(),
            devices: devices.to_vec(),
            driver: host::gpu_driver(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            files,
        }
    }

    /// Refuses kernels that were not made for `here`, naming what is here and what is there.
    fn check(&self, here: &Self, archive: &Path) -> Result<()> {
        let shown = |devices: &[String]| if devices.is_empty() { "none".to_owned() } else { devices.join(", ") };
        let driver = |manifest: &Self| manifest.driver.clone().unwrap_or_else(|| "unknown".into());
        let pairs = [
            ("the form of the archive", self.schema.clone(), here.schema.clone()),
            ("kiln", self.kiln.clone(), here.kiln.clone()),
            ("Burn", self.burn.clone(), here.burn.clone()),
            ("devices", shown(&self.devices), shown(&here.devices)),
            ("driver", driver(self), driver(here)),
            ("system", self.system.clone(), here.system.clone()),
        ];
        match pairs.into_iter().find(|(_, theirs, ours)| theirs != ours) {
            None => Ok(()),
            Some((what, theirs, ours)) => Err(Error::data(format!(
                "{}: these kernels are for another machine or build: {what}: {theirs} in the archive, {ours} here",
                archive.display()
            ))
            .help("tune on this machine with `kiln pretune FILE`")),
        }
    }
}

/// Packs the kernels of the cache in `cache`, which were made for `devices`, into the tar archive
/// `target`, which appears when it is whole.
///
/// # Errors
/// No kernels, a target that exists, and the operating system's.
pub fn export(cache: &Path, devices: &[String], target: &Path) -> Result<Manifest> {
    let prefix = format!("{KERNELS}/");
    let names = list(cache)?.into_iter().filter_map(|entry| entry.name.strip_prefix(&prefix).map(str::to_owned));
    let names = names.collect::<Vec<_>>();
    if names.is_empty() {
        return Err(Error::data(format!("{}: there are no kernels in the cache", cache.join(KERNELS).display()))
            .help("`kiln pretune FILE` compiles and tunes on wgpu and CUDA; the CPU has no kernels to keep"));
    }
    let writing = |error: io::Error| Error::io(format!("write {}", target.display()), &error);
    let whole = WholeFile::create_new(target).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::config(format!("{}: the file exists", target.display()))
            .help("give the name of a file that does not exist"),
        _ => writing(error),
    })?;
    let mut files = Vec::new();
    for name in names {
        let path = cache.join(KERNELS).join(&name);
        let io = |error: io::Error| Error::io(format!("read {}", path.display()), &error);
        let (bytes, sha256) = File::open(&path).and_then(|file| copied(file, &mut io::sink())).map_err(io)?;
        files.push(Packed { name, bytes, sha256 });
    }
    let manifest = Manifest::here(devices, files);
    let text = serde_json::to_string_pretty(&manifest).map_err(|error| Error::data(format!("{MANIFEST}: {error}")))?;
    let mut archive = tar::Builder::new(whole.file());
    let mut append = |name: &str, bytes: u64, from: &mut dyn Read| {
        // Times and owners say nothing of the kernels.
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, from).map_err(writing)
    };
    append(MANIFEST, text.len() as u64, &mut text.as_bytes())?;
    for packed in &manifest.files {
        let path = cache.join(KERNELS).join(&packed.name);
        let io = |error: io::Error| Error::io(format!("read {}", path.display()), &error);
        let mut file = Digesting::new(File::open(&path).map_err(io)?);
        append(&format!("{prefix}{}", packed.name), packed.bytes, &mut (&mut file).take(packed.bytes))?;
        // A run that is at work may have written meanwhile: what the archive says of a file has to
        // be true of it.
        io::copy(&mut file, &mut io::sink()).map_err(io)?;
        if file.end() != (packed.bytes, packed.sha256.clone()) {
            return Err(Error::data(format!("{}: the file changed while it was packed", path.display()))
                .help("a run is at work with this cache: export when none is"));
        }
    }
    archive.finish().map_err(writing)?;
    drop(archive);
    whole.commit().map_err(writing)?;
    Ok(manifest)
}

/// Puts the kernels of `archive` into the cache in `cache`. Files that are there already are
/// replaced only with `replace`.
///
/// # Errors
/// An archive that is damaged, that holds anything besides, or that is of another version, device
/// or driver; kernels that are there already; and the operating system's. The cache is then as it
/// was.
pub fn import(archive: &Path, cache: &Path, devices: &[String], replace: bool) -> Result<Manifest> {
    let mut file = File::open(archive).map_err(|error| Error::io(format!("read {}", archive.display()), &error))?;
    let io = |error: io::Error| Error::io(format!("write {}", cache.display()), &error);
    let target = cache.join(KERNELS);
    fs::create_dir_all(&target).map_err(io)?;
    // In the cache's own folder, so that a rename is all that is left to do.
    let beside = tempfile::Builder::new().prefix(".import-").tempdir_in(cache).map_err(io)?;
    let manifest = unpack(&mut file, archive, beside.path(), &Manifest::here(devices, Vec::new()))?;
    let there = manifest.files.iter().find(|packed| target.join(&packed.name).exists());
    if let (Some(there), false) = (there, replace) {
        return Err(Error::config(format!("{}: the cache has kernels already", target.join(&there.name).display()))
            .help("--replace takes those of the archive in their place"));
    }
    for packed in &manifest.files {
        let path = target.join(&packed.name);
        fs::rename(beside.path().join(&packed.name), &path)
            .map_err(|error| Error::io(format!("write {}", path.display()), &error))?;
    }
    Ok(manifest)
}

/// Unpacks an archive into the empty folder `into` and checks it: against `here`, its manifest, and
/// every file against that.
fn unpack(file: &mut File, archive: &Path, into: &Path, here: &Manifest) -> Result<Manifest> {
    let shown = archive.display();
    let damaged = |what: String| {
        Error::data(format!("{shown}: no archive of `kiln cache export`, or a damaged one: {what}"))
            .help("export it again; nothing of it was taken")
    };
    let unreadable = |error: io::Error| match error.to_string() {
        // The words of the library for a header that is cut off.
        said if said.starts_with("failed to read entire block") => damaged("it ends too early".to_owned()),
        said => damaged(said),
    };
    let mut reader = tar::Archive::new(file);
    let mut entries = reader.entries().map_err(unreadable)?;
    let first = entries.next().transpose().map_err(unreadable)?;
    let mut first = first.ok_or_else(|| damaged("it is empty".into()))?;
    if name_of(&first) != Some(PathBuf::from(MANIFEST)) {
        return Err(damaged(format!("it does not begin with {MANIFEST}")));
    }
    let mut text = String::new();
    first.by_ref().take(MAX_MANIFEST).read_to_string(&mut text).map_err(unreadable)?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| damaged(format!("{MANIFEST}: {}", json_words(&error))))?;
    manifest.check(here, archive)?;
    let mut left = BTreeSet::new();
    for packed in &manifest.files {
        // One plain name: nothing of an archive may reach beyond the folder of the kernels.
        let plain = Path::new(&packed.name).file_name().is_some_and(|name| name.to_str() == Some(packed.name.as_str()));
        if !plain || !left.insert(packed.name.as_str()) {
            return Err(damaged(format!("{MANIFEST} lists {:?}", packed.name)));
        }
    }
    for entry in entries {
        let mut entry = entry.map_err(unreadable)?;
        let path = name_of(&entry);
        let listed = manifest.files.iter().find(|packed| path == Some(Path::new(KERNELS).join(&packed.name)));
        let Some(packed) = listed.filter(|packed| left.remove(packed.name.as_str())) else {
            let name = path.map_or_else(|| "something that is no plain file".into(), |path| format!("{path:?}"));
            return Err(damaged(format!("it holds {name}, which its {MANIFEST} does not list")));
        };
        let path = into.join(&packed.name);
        let io = |error: io::Error| Error::io(format!("write {}", path.display()), &error);
        let mut out = File::create_new(&path).map_err(io)?;
        // Reading and writing fail for different reasons; a truncated archive is the likelier one.
        let (bytes, sha256) = copied(&mut entry, &mut out).map_err(unreadable)?;
        out.sync_all().map_err(io)?;
        if (bytes, &sha256) != (packed.bytes, &packed.sha256) {
            return Err(damaged(format!("{}: its bytes are not those that were packed", packed.name)));
        }
    }
    match left.first() {
        None => Ok(manifest),
        Some(name) => Err(damaged(format!("{name} is missing"))),
    }
}

/// The path of a plain file of an archive; none for anything else.
fn name_of<R: Read>(entry: &tar::Entry<'_, R>) -> Option<PathBuf> {
    let plain = entry.header().entry_type() == tar::EntryType::Regular;
    entry.path().ok().filter(|_| plain).map(|path| path.into_owned())
}

/// Copies to the end; how many bytes, and their SHA-256.
fn copied(from: impl Read, to: &mut impl Write) -> io::Result<(u64, String)> {
    let mut from = BufReader::with_capacity(1 << 16, Digesting::new(from));
    io::copy(&mut from, to)?;
    Ok(from.into_inner().end())
}

/// Passes bytes on, counts them and takes their SHA-256.
struct Digesting<R> {
    from: R,
    bytes: u64,
    hash: Sha256,
}

impl<R> Digesting<R> {
    fn new(from: R) -> Self {
        Self { from, bytes: 0, hash: Sha256::new() }
    }

    /// How many bytes have passed, and their SHA-256 as hexadecimal digits.
    fn end(self) -> (u64, String) {
        (self.bytes, hex(&self.hash.finalize()))
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}
