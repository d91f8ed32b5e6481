//! `cargo xtask dist`: the materialized tree as a source archive, the library as one C file, and package recipes.

pub mod check;

use crate::amalgamate::{amalgamate, public_headers};
use crate::materialize;
use crate::tree::{File, Tree};
use crate::upstream::{self, Upstream};
use crate::util;
use anyhow::{ensure, Context, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256, Sha512};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// A pinned version, or the folder of a mimalloc checkout
    #[arg(long, value_name = "VERSION|PATH", default_value = upstream::PRIMARY)]
    upstream: String,
    /// Where to [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where the archive will be published, for the recipes [default: where it is written to]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// 2026-01-01, for all files.
const TIME: u64 = 1_767_225_600;

/// Text files with `@VERSION@`, `@ARCHIVE@`, `@URL@`, `@SHA256@` and `@SHA512@` in them.
const RECIPES: [&str; 5] = [
    "vcpkg/mimalloc/portfile.cmake",
    "vcpkg/mimalloc/vcpkg.json",
    "vcpkg/mimalloc/usage",
    "conan/conanfile.py",
    "conan/conandata.yml",
];

pub fn run(args: Args) -> Result<()> {
    let upstream = Upstream::parse(&args.upstream)?;
    let out = args.out.unwrap_or_else(|| util::target_dir().join("dist"));
    let dist = Dist::of(&upstream)?;
    for path in dist.write(&out, args.url)? {
        println!("{}", path.display());
    }
    Ok(())
}

pub struct Dist {
    version: String,
    tree: Tree,
    single: Tree,
}

impl Dist {
    pub fn of(upstream: &Upstream) -> Result<Dist> {
        let tree = materialize::compose(upstream)?;
        let version = format!("{}-prof.{}", tree.version()?, profiler_version(&tree)?);
        let mut single = Tree::default();
        let title = format!("mimalloc {} with the heap profiler mi_prof {}", tree.version()?, profiler_version(&tree)?);
        single.insert("mimalloc-prof.c", amalgamate(&tree, &title)?);
        for name in public_headers(&tree) {
            single.insert(name, tree.files[&format!("include/{name}")].bytes.clone());
        }
        single.insert("LICENSE", tree.files.get("LICENSE").context("upstream has no LICENSE")?.bytes.clone());
        Ok(Dist { version, tree, single })
    }

    /// The folder within the archive.
    pub fn name(&self) -> String {
        format!("mimalloc-{}", self.version)
    }

    /// Returns what was written.
    pub fn write(&self, out: &Path, url: Option<String>) -> Result<Vec<PathBuf>> {
        let mut written = Vec::new();
        let mut write = |path: PathBuf, bytes: &[u8]| -> Result<()> {
            util::write_atomic(&path, bytes, false)?;
            written.push(path);
            Ok(())
        };
        let single_name = format!("mimalloc-single-{}", self.version);
        let (archive, single) = (archive(&self.tree, &self.name())?, archive(&self.single, &single_name)?);
        let archive_name = format!("{}.tar.gz", self.name());
        write(out.join(&archive_name), &archive)?;
        write(out.join(format!("{single_name}.tar.gz")), &single)?;
        for (path, file) in &self.single.files {
            write(out.join("single").join(path), &file.bytes)?;
        }
        let here = out.canonicalize().with_context(|| out.display().to_string())?;
        let url = url.unwrap_or_else(|| format!("file://{}", here.display()));
        let values = [
            ("@VERSION@", self.version.clone()),
            ("@URL@", format!("{}/{archive_name}", url.trim_end_matches('/'))),
            ("@ARCHIVE@", archive_name),
            ("@SHA256@", hex(&Sha256::digest(&archive))),
            ("@SHA512@", hex(&Sha512::digest(&archive))),
        ];
        for recipe in RECIPES {
            write(out.join(recipe), filled(recipe, &values)?.as_bytes())?;
        }
        Ok(written)
    }
}

fn filled(recipe: &str, values: &[(&str, String)]) -> Result<String> {
    let template = util::repo_root().join("xtask/packaging").join(recipe);
    let mut text = String::from_utf8(util::read(&template)?)?;
    values.iter().for_each(|(place, value)| text = text.replace(place, value));
    Ok(text)
}

/// `#define MI_PROF_VERSION  "0.1.0"`
fn profiler_version(tree: &Tree) -> Result<String> {
    let header = tree.text("src/profile-internal.h").context("there is no profile-internal.h")?;
    let define = header.lines().find_map(|line| line.strip_prefix("#define MI_PROF_VERSION"));
    Ok(define.context("profile-internal.h defines no MI_PROF_VERSION")?.trim().trim_matches('"').to_string())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A `tar.gz` that depends on nothing but the files.
fn archive(tree: &Tree, folder: &str) -> Result<Vec<u8>> {
    ensure!(!tree.files.is_empty(), "nothing to archive");
    let mut archive = tar::Builder::new(GzBuilder::new().mtime(0).write(Vec::new(), Compression::best()));
    for (path, File { bytes, executable }) in &tree.files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(if *executable { 0o755 } else { 0o644 });
        header.set_mtime(TIME);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, format!("{folder}/{path}"), bytes.as_slice()).with_context(|| path.clone())?;
    }
    Ok(archive.into_inner()?.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::PRIMARY;
    use std::io::Read;

    #[test]
    fn the_same_files_give_the_same_archive_with_all_of_them() {
        let dist = Dist::of(&Upstream::Pinned(PRIMARY)).unwrap();
        let first = archive(&dist.tree, "x").unwrap();
        assert!(first == archive(&dist.tree, "x").unwrap());
        let mut found = Tree::default();
        for entry in tar::Archive::new(flate2::read::GzDecoder::new(&*first)).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().strip_prefix("x/").unwrap().to_string();
            let executable = entry.header().mode().unwrap() & 0o100 != 0;
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.files.insert(path, File { bytes, executable });
        }
        assert!(found == dist.tree);
    }

    #[test]
    fn every_place_of_a_recipe_is_filled() {
        let out = std::env::temp_dir().join(format!("xtask-dist-{}", std::process::id()));
        let dist = Dist::of(&Upstream::Pinned(PRIMARY)).unwrap();
        dist.write(&out, Some("https://example.invalid/releases/".into())).unwrap();
        for recipe in RECIPES {
            let text = std::fs::read_to_string(out.join(recipe)).unwrap();
            let places = ["@VERSION@", "@URL@", "@ARCHIVE@", "@SHA256@", "@SHA512@"];
            assert!(places.iter().all(|place| !text.contains(place)), "{text}");
        }
        let portfile = std::fs::read_to_string(out.join(RECIPES[0])).unwrap();
        assert!(portfile.contains(&format!("https://example.invalid/releases/{}.tar.gz", dist.name())), "{portfile}");
        std::fs::remove_dir_all(out).unwrap();
    }
}
