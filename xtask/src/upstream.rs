//! Upstream trees: pinned crates that cargo downloads and we verify and unpack, or any mimalloc checkout.

use crate::tree::{File, Tree};
use crate::util;
use crate::version::Version;
use anyhow::{bail, ensure, Context, Result};
use flate2::read::GzDecoder;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub const PRIMARY: &str = "2.5.2";

pub const CRATE: &str = "libmimalloc-sys2";
pub const CRATE_TREE: &str = "c_src/mimalloc";

/// The crates carry tests for the v3 line only; these, of the oldest pin, need the fewest changes.
const TESTS_PIN: &str = "2.3.2";
const CRATE_TESTS: &str = "c_src/mimalloc3/test";

/// The pinned versions, oldest first: each has a folder `upstream/VERSION`.
pub fn pins() -> &'static [&'static str] {
    static PINS: OnceLock<Vec<&'static str>> = OnceLock::new();
    PINS.get_or_init(|| {
        let entries = std::fs::read_dir(pins_folder()).expect("upstream/ lies in the repository").flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut pins: Vec<(Version, String)> = names.filter_map(|name| Some((name.parse().ok()?, name))).collect();
        pins.sort();
        pins.into_iter().map(|(_, name)| &*name.leak()).collect()
    })
}

pub fn pins_folder() -> PathBuf {
    util::repo_root().join("upstream")
}

/// What `--upstream` may name.
pub enum Upstream {
    Pinned(&'static str),
    Checkout(PathBuf),
}

impl Upstream {
    pub fn parse(name: &str) -> Result<Upstream> {
        if let Some(pin) = pins().iter().find(|pin| **pin == name) {
            return Ok(Upstream::Pinned(pin));
        }
        let path = Path::new(name);
        ensure!(path.is_dir(), "--upstream {name}: neither a pinned version ({}) nor a folder", pins().join(", "));
        let path = path.canonicalize().with_context(|| format!("{name}: cannot be resolved"))?;
        Ok(Upstream::Checkout(path))
    }

    /// A short name for folders and messages.
    pub fn label(&self) -> String {
        match self {
            Upstream::Pinned(pin) => pin.to_string(),
            Upstream::Checkout(path) => path.file_name().map_or("tree".into(), |name| name.to_string_lossy().into()),
        }
    }

    pub fn tree(&self) -> Result<Tree> {
        match self {
            Upstream::Pinned(pin) => {
                let tree = pinned_tree(pin, CRATE_TREE)?;
                let version = tree.version()?;
                ensure!(version.to_string() == *pin, "upstream/{pin}: its crate holds mimalloc {version}");
                Ok(tree)
            }
            Upstream::Checkout(path) => Tree::read(path),
        }
    }

    /// The pristine tree as a folder.
    pub fn folder(&self) -> Result<PathBuf> {
        match self {
            Upstream::Pinned(pin) => unpack(pin),
            Upstream::Checkout(path) => Ok(path.clone()),
        }
    }
}

/// Upstream's own tests, as their crate has them.
pub fn tests() -> Result<Tree> {
    pinned_tree(TESTS_PIN, CRATE_TESTS)
}

fn pinned_tree(pin: &str, within: &str) -> Result<Tree> {
    crate_tree(&pins_folder().join(pin), within).with_context(|| format!("upstream/{pin}"))
}

/// What a crate has in one of its folders.
pub fn crate_tree(pin_folder: &Path, within: &str) -> Result<Tree> {
    let tree = read_archive(&crate_of(pin_folder)?, within).context("the crate cannot be read")?;
    ensure!(!tree.files.is_empty(), "the crate has no {within}");
    Ok(tree)
}

/// Into `target/upstream/VERSION`. What lies there is compared, not trusted.
fn unpack(pin: &str) -> Result<PathBuf> {
    let folder = util::target_dir().join("upstream").join(pin);
    let tree = pinned_tree(pin, CRATE_TREE)?;
    if folder.is_dir() && Tree::read(&folder)? == tree {
        return Ok(folder);
    }
    let staging = folder.with_file_name(format!("{pin}.tmp{}", std::process::id()));
    for (path, file) in &tree.files {
        util::write_atomic(&staging.join(path), &file.bytes, file.executable)?;
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{}: cannot be removed", folder.display()))?;
    }
    std::fs::rename(&staging, &folder).with_context(|| format!("{}: cannot be put in place", folder.display()))?;
    Ok(folder)
}

/// The bytes of the crate that cargo downloaded, checked against the pin's lock file.
fn crate_of(pin_folder: &Path) -> Result<Vec<u8>> {
    let cached = cached_crate(pin_folder)?;
    verified(&cached, &locked(pin_folder)?.checksum)
}

fn verified(archive: &Path, checksum: &str) -> Result<Vec<u8>> {
    let bytes = util::read(archive)?;
    let actual: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(
        actual == checksum,
        "{}: damaged or tampered with (its SHA-256 is {actual}, the lock file says {checksum}); \
         delete it and run again to have cargo fetch it anew",
        archive.display()
    );
    Ok(bytes)
}

/// The crate, as a pin's lock file has it.
#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    #[serde(default)]
    checksum: String,
}

fn locked(pin_folder: &Path) -> Result<Locked> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    let lock = pin_folder.join("Cargo.lock");
    let text = String::from_utf8(util::read(&lock)?)?;
    let packages = toml::from_str::<Lock>(&text).with_context(|| lock.display().to_string())?.package;
    let package = packages.into_iter().find(|package| package.name == CRATE);
    package.with_context(|| format!("{}: does not name {CRATE}", lock.display()))
}

/// Cargo keeps `registry/cache/INDEX/NAME-VERSION.crate` beside `registry/src/INDEX/NAME-VERSION/`.
fn cached_crate(pin_folder: &Path) -> Result<PathBuf> {
    let source = match crate_source(pin_folder) {
        Ok(source) if archive_of(&source).is_some_and(|archive| archive.is_file()) => source,
        _ => {
            fetch(pin_folder)?;
            crate_source(pin_folder)?
        }
    };
    let archive = archive_of(&source).filter(|archive| archive.is_file());
    archive.with_context(|| format!("{}: cargo keeps no .crate file for it; is the source vendored?", source.display()))
}

fn archive_of(source: &Path) -> Option<PathBuf> {
    let (package, index) = (source.file_name()?, source.parent()?.file_name()?);
    let registry = source.parent()?.parent()?.parent()?;
    let mut name = package.to_os_string();
    name.push(".crate");
    Some(registry.join("cache").join(index).join(name))
}

fn crate_source(pin_folder: &Path) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
    }
    let json = cargo(pin_folder, &["metadata", "--locked", "--offline", "--format-version", "1"])?;
    let packages = serde_json::from_slice::<Metadata>(&json)?.packages;
    let package = packages.into_iter().find(|package| package.name == CRATE);
    let manifest = package.with_context(|| format!("{}: does not name {CRATE}", pin_folder.display()))?.manifest_path;
    Ok(manifest.parent().expect("a manifest lies in a folder").to_path_buf())
}

/// A crate that is newer than those of the pins, if the registry has one.
pub fn newer_crate() -> Result<Option<String>> {
    let folder = util::target_dir().join("newest-crate");
    write_pin(&folder, ">=0", None)?;
    cargo(&folder, &["generate-lockfile"])?;
    let newest = locked_version(&folder)?;
    for pin in pins() {
        if locked_version(&pins_folder().join(pin))? >= newest {
            return Ok(None);
        }
    }
    Ok(Some(newest.to_string()))
}

/// The crate's version in a lock file.
pub fn locked_version(pin_folder: &Path) -> Result<Version> {
    locked(pin_folder)?.version.parse()
}

fn fetch(pin_folder: &Path) -> Result<()> {
    let pin = pin_folder.file_name().unwrap_or_default().to_string_lossy();
    eprintln!("fetching mimalloc {pin} (crate {CRATE}) with cargo");
    cargo(pin_folder, &["fetch", "--locked"]).map(drop)
}

/// A manifest that pins a version of the crate, and nothing else.
pub fn write_pin(folder: &Path, requirement: &str, mimalloc: Option<Version>) -> Result<()> {
    let mimalloc = mimalloc.map_or("what it ships".to_string(), |version| version.to_string());
    let manifest = format!(
        "# Pins mimalloc {mimalloc}: the crate ships its whole tree in {CRATE_TREE}.\n\
         [package]\n\
         name = \"upstream-pin\"\n\
         version = \"0.0.0\"\n\
         edition = \"2021\"\n\
         publish = false\n\n\
         [lib]\n\
         path = \"../pin.rs\"\n\n\
         [workspace]\n\n\
         # Never compiled: no target satisfies an empty any().\n\
         [target.'cfg(any())'.dependencies]\n\
         {CRATE} = \"{requirement}\"\n"
    );
    util::write_atomic(&folder.join("Cargo.toml"), manifest.as_bytes(), false)?;
    let library = folder.with_file_name("pin.rs");
    if !library.exists() {
        std::fs::copy(pins_folder().join("pin.rs"), &library).with_context(|| library.display().to_string())?;
    }
    Ok(())
}

pub fn cargo(folder: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo).args(args).current_dir(folder).output().context("cannot run cargo")?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("cargo {} failed in {}:\n{}", args[0], folder.display(), message.trim_end());
    }
    Ok(output.stdout)
}

/// The files below `within` of a crate's only top folder.
fn read_archive(archive: &[u8], within: &str) -> Result<Tree> {
    let mut tree = Tree::default();
    for entry in tar::Archive::new(GzDecoder::new(archive)).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_str().context("a path is not UTF-8")?.to_string();
        let inner = path.split_once('/').and_then(|(_, path)| path.strip_prefix(within)?.strip_prefix('/'));
        let Some(inner) = inner.filter(|_| entry.header().entry_type().is_file()) else { continue };
        ensure!(!inner.split('/').any(|part| part == ".."), "{path}: leaves the archive");
        let executable = entry.header().mode()? & 0o100 != 0;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        tree.files.insert(inner.to_string(), File { bytes, executable });
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_holds_the_version_it_is_named_after() {
        assert!(pins().contains(&PRIMARY));
        for pin in pins() {
            let tree = Upstream::Pinned(pin).tree().unwrap();
            assert_eq!(tree.version().unwrap(), pin.parse::<Version>().unwrap());
        }
    }

    #[test]
    fn a_tampered_crate_is_refused() {
        let folder = util::repo_root().join("upstream").join(PRIMARY);
        let mut bytes = std::fs::read(cached_crate(&folder).unwrap()).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let tampered = std::env::temp_dir().join(format!("xtask-tampered-{}.crate", std::process::id()));
        std::fs::write(&tampered, bytes).unwrap();
        let error = verified(&tampered, &locked(&folder).unwrap().checksum).unwrap_err().to_string();
        std::fs::remove_file(&tampered).unwrap();
        assert!(error.contains("tampered"), "{error}");
    }

    #[test]
    fn the_archive_of_another_version_is_refused() {
        let [pinned, other] = ["2.5.0", "2.5.1"].map(|pin| pins_folder().join(pin));
        let error =
            verified(&cached_crate(&other).unwrap(), &locked(&pinned).unwrap().checksum).unwrap_err().to_string();
        assert!(error.contains("tampered"), "{error}");
    }

    #[test]
    fn unpacking_again_repairs_what_was_changed() {
        let pin = "2.5.0";
        let header = unpack(pin).unwrap().join("include/mimalloc.h");
        std::fs::write(&header, "changed").unwrap();
        unpack(pin).unwrap();
        assert_eq!(
            std::fs::read(&header).unwrap(),
            Upstream::Pinned(pin).tree().unwrap().files["include/mimalloc.h"].bytes
        );
    }

    #[test]
    fn a_name_that_is_no_pin_and_no_folder_is_refused() {
        assert!(Upstream::parse("2.4.0").is_err());
    }
}
