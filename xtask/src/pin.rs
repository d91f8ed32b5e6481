//! `cargo xtask pin VERSION`: pins the mimalloc that a version of the crate ships, and reports whether we fit it.

use crate::drift::Report;
use crate::upstream::{self, crate_tree, pins, pins_folder, Upstream, CRATE, CRATE_TREE};
use crate::util;
use crate::version::Version;
use anyhow::{ensure, Context, Result};
use std::path::Path;

#[derive(clap::Args)]
pub struct Args {
    /// A version of the crate libmimalloc-sys2
    version: String,
    /// Only apply the hooks and compare the source afterwards, build nothing
    #[arg(long)]
    no_build: bool,
}

pub fn run(args: Args) -> Result<()> {
    let mimalloc = write(&args.version, &pins_folder())?;
    println!("upstream/{mimalloc}: {CRATE} {}, which ships mimalloc {mimalloc}", args.version);
    let upstreams: Vec<Upstream> = pins().iter().map(|pin| Upstream::Pinned(pin)).collect();
    let report = Report::of(&upstreams, !args.no_build, false)?;
    report.print();
    report.verdict()
}

/// Writes manifest and lock to `pins/MIMALLOC`, or leaves everything as it was. Returns mimalloc's version.
fn write(version: &str, pins: &Path) -> Result<Version> {
    version.parse::<Version>().context("the version of a crate is needed")?;
    let staging = pins.join(format!(".pin-{}", std::process::id()));
    let written = fetched_version(&staging, version).and_then(|mimalloc| {
        let folder = pins.join(mimalloc.to_string());
        upstream::write_pin(&staging, &format!("={version}"), Some(mimalloc))?;
        for file in ["Cargo.lock", "Cargo.toml"] {
            util::write_atomic(&folder.join(file), &util::read(&staging.join(file))?, false)?;
        }
        Ok(mimalloc)
    });
    let _ = std::fs::remove_dir_all(&staging);
    written
}

/// Has cargo resolve and download the crate in `folder`, and looks into it.
fn fetched_version(folder: &Path, version: &str) -> Result<Version> {
    upstream::write_pin(folder, &format!("={version}"), None)?;
    let offline = upstream::cargo(folder, &["generate-lockfile", "--offline"]);
    offline
        .or_else(|_| upstream::cargo(folder, &["generate-lockfile"]))
        .with_context(|| format!("{CRATE} {version}: cargo cannot resolve it"))?;
    let mimalloc = crate_tree(folder, CRATE_TREE)?.version()?;
    ensure!(mimalloc.0 == 2, "{CRATE} {version}: {CRATE_TREE} is mimalloc {mimalloc}, not of the v2 line");
    Ok(mimalloc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::PRIMARY;

    fn scratch(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-pin-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_pin_is_written_as_the_others_are() {
        let folder = scratch("again");
        let crate_version = upstream::locked_version(&pins_folder().join(PRIMARY)).unwrap();
        assert_eq!(write(&crate_version.to_string(), &folder).unwrap().to_string(), PRIMARY);
        let manifest = |pins: &Path| std::fs::read_to_string(pins.join(PRIMARY).join("Cargo.toml")).unwrap();
        assert_eq!(manifest(&folder), manifest(&pins_folder()));
        let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [PRIMARY, "pin.rs"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_version_of_the_crate_leaves_nothing_behind() {
        let folder = scratch("none");
        assert!(write("2.5", &folder).is_err());
        assert!(std::fs::read_dir(&folder).unwrap().next().is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
