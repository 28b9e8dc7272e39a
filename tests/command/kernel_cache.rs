//! `kiln pretune`, `kiln cache export` and `kiln cache import` through the binary. The CPU keeps no
//! kernels, so files that stand for them are put into the cache; archives that somebody has
//! tampered with are made by hand.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::messages::messages;
use crate::common::place::listing;
use crate::common::small_run::write;
use crate::common::{fails, kiln, succeeds};
use serde_json::{Value, json};

/// A folder with a cache of two kernel files.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kiln-cache/kernels");
    std::fs::create_dir_all(&kernels).unwrap();
    std::fs::write(kernels.join("kiln-a.db"), vec![7u8; 70_000]).unwrap();
    // A database's memory: a hole with a little in it.
    let mut shared = std::fs::File::create(kernels.join("kiln-a.db-wal")).unwrap();
    shared.set_len(1 << 20).unwrap();
    shared.write_all(b"log").unwrap();
    folder
}

fn cache(folder: &Path, args: &[&str]) -> std::process::Command {
    let mut command = kiln(folder);
    command.arg("cache").args(args);
    command
}

/// The entries of an archive: name and bytes.
type Entries = Vec<(String, Vec<u8>)>;

fn unpacked(path: &Path) -> Entries {
    let mut archive = tar::Archive::new(std::fs::File::open(path).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        (entry.path().unwrap().display().to_string(), bytes)
    });
    entries.collect()
}

/// Packs entries as they are, also under names that no library would write.
fn packed(path: &Path, entries: &[(String, Vec<u8>)]) {
    let mut archive = tar::Builder::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append(&header, &bytes[..]).unwrap();
    }
    archive.into_inner().unwrap();
}

/// The archive of [`place`], with its manifest changed.
fn changed(folder: &Path, name: &str, change: impl Fn(&mut Value, &mut Entries)) -> PathBuf {
    let mut entries = unpacked(&folder.join("k.tar"));
    let mut manifest: Value = serde_json::from_slice(&entries[0].1).unwrap();
    change(&mut manifest, &mut entries);
    entries[0].1 = manifest.to_string().into_bytes();
    let path = folder.join(name);
    packed(&path, &entries);
    path
}

#[test]
fn kernels_go_from_one_cache_to_another() {
    let messages = messages!();
    let from = place();
    let stdout = succeeds(&mut cache(from.path(), &["export", "k.tar"]));
    assert!(
        stdout.contains("exported: kiln 0.1.0 on Burn 0.22.1, linux x86_64") && stdout.contains("70000 bytes"),
        "{stdout}"
    );
    let archive = from.path().join("k.tar");
    let names = unpacked(&archive).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names, ["kiln-cache.json", "kernels/kiln-a.db", "kernels/kiln-a.db-wal"]);
    messages.fails(cache(from.path(), &["export", "k.tar"]), 2);

    let to = tempfile::tempdir().unwrap();
    let archive = archive.display().to_string();
    let stdout = succeeds(&mut cache(to.path(), &["import", &archive]));
    assert!(stdout.contains("imported: kiln 0.1.0 on Burn 0.22.1"), "{stdout}");
    let kernels = to.path().join("kiln-cache/kernels");
    assert_eq!(std::fs::read(kernels.join("kiln-a.db")).unwrap(), vec![7u8; 70_000]);
    let mut shared = vec![0; 1 << 20];
    shared[..3].copy_from_slice(b"log");
    assert!(std::fs::read(kernels.join("kiln-a.db-wal")).unwrap() == shared);
    assert_eq!(listing(&to.path().join("kiln-cache")), ["kernels"], "nothing half-done is left");
    messages.fails(cache(to.path(), &["import", &archive]), 2);
    std::fs::write(kernels.join("kiln-a.db"), "older").unwrap();
    succeeds(&mut cache(to.path(), &["import", &archive, "--replace"]));
    assert_eq!(std::fs::read(kernels.join("kiln-a.db")).unwrap().len(), 70_000);
    let empty = tempfile::tempdir().unwrap();
    messages.fails(cache(empty.path(), &["export", "k.tar"]), 3);
}

#[test]
fn kernels_of_another_version_device_or_driver_are_refused() {
    let folder = place();
    succeeds(&mut cache(folder.path(), &["export", "k.tar"]));
    for (field, value, shown) in [
        ("kiln", json!("0.0.9"), "kiln: 0.0.9 in the archive, 0.1.0 here"),
        ("burn", json!("0.21.0"), "Burn: 0.21.0 in the archive, 0.22.1 here"),
        ("devices", json!(["cuda NVIDIA H200"]), "devices: cuda NVIDIA H200 in the archive, "),
        ("driver", json!("NVRM 570"), "driver: NVRM 570 in the archive, "),
        ("system", json!("linux sparc"), "system: linux sparc in the archive, linux x86_64 here"),
    ] {
        let archive = changed(folder.path(), "other.tar", |manifest, _| manifest[field] = value.clone());
        let to = tempfile::tempdir().unwrap();
        fails(&mut cache(to.path(), &["import", &archive.display().to_string()]), 3, &[shown, "`kiln pretune FILE`"]);
        assert_eq!(listing(&to.path().join("kiln-cache/kernels")), Vec::<String>::new());
    }
}

#[test]
fn what_was_tampered_with_or_damaged_is_refused_and_nothing_of_it_is_taken() {
    let messages = messages!();
    let folder = place();
    succeeds(&mut cache(folder.path(), &["export", "k.tar"]));
    let refused = |how: &str, archive: &Path| {
        let to = tempfile::tempdir().unwrap();
        messages.given("the archive", how);
        messages.fails(cache(to.path(), &["import", &archive.display().to_string()]), 3);
        assert_eq!(listing(to.path()), ["kiln-cache"], "{how}");
        assert_eq!(listing(&to.path().join("kiln-cache")), ["kernels"], "{how}");
        assert_eq!(listing(&to.path().join("kiln-cache/kernels")), Vec::<String>::new(), "{how}");
    };
    let tampered = |how: &str, change: &dyn Fn(&mut Value, &mut Entries)| {
        refused(how, &changed(folder.path(), "tampered.tar", change));
    };
    tampered("another byte in a file", &|_, entries| entries[1].1[5] = 8);
    tampered("a file less", &|_, entries| drop(entries.pop()));
    tampered("a file more", &|_, entries| entries.push(("kernels/more".into(), vec![1])));
    // Out of the folder, by a name of the archive, or by one of the manifest.
    for name in ["kernels/../../../evil", "/tmp/kiln-evil"] {
        tampered(&format!("a file {name}"), &|_, entries| entries[2].0 = name.into());
    }
    for name in ["../evil", "/tmp/kiln-evil", "..", "a/b", ""] {
        tampered(&format!("a file \"{name}\" in the manifest, too"), &|manifest, entries| {
            manifest["files"][1]["name"] = name.into();
            entries[2].0 = format!("kernels/{name}");
        });
    }
    tampered("a file twice in the manifest", &|manifest, _| manifest["files"][1]["name"] = "kiln-a.db".into());
    tampered("no field `burn` in the manifest", &|manifest, _| {
        *manifest = json!({"schema": manifest["schema"], "kiln": "1"});
    });

    let whole = std::fs::read(folder.path().join("k.tar")).unwrap();
    let short = folder.path().join("short.tar");
    for (how, bytes) in
        [("40,000 bytes of it", &whole[..40_000]), ("no archive", b"no archive at all"), ("no byte", b"")]
    {
        std::fs::write(&short, bytes).unwrap();
        refused(how, &short);
    }
    packed(&short, &[("kernels/kiln-a.db".into(), vec![7])]);
    refused("no manifest", &short);
    let mut link = tar::Builder::new(std::fs::File::create(&short).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "kiln-cache.json", "/etc/passwd").unwrap();
    link.into_inner().unwrap();
    refused("a link to /etc/passwd in place of the manifest", &short);
    assert!(!Path::new("/tmp/kiln-evil").exists());
    let to = tempfile::tempdir().unwrap();
    messages.fails(cache(to.path(), &["import", "nowhere.tar"]), 1);
}

#[test]
fn on_the_cpu_there_is_nothing_to_tune() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let stdout = succeeds(kiln(folder.path()).args(["pretune", "config.toml"]));
    assert_eq!(stdout, "nothing to tune: on the CPU (Flex) no kernel is compiled or tuned\n");
    let stdout = succeeds(kiln(folder.path()).args(["pretune", "config.toml", "--set", "compiler.warmup=on"]));
    assert!(stdout.contains("warm-up: shape 1 of ") && stdout.contains("kernels: 0 files"), "{stdout}");
    assert!(!folder.path().join("run").exists(), "no run begins");
    messages.fails(kiln(folder.path()).args(["pretune", "nowhere.toml"]), 2);
}
