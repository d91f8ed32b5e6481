//! What `dist` makes is used as its readers would: without Rust, and without us.

use super::Dist;
use crate::cmake::{cc, run};
use crate::upstream::{Upstream, PRIMARY};
use crate::{consumers, tools, util};
use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

/// A fresh `dist` of the primary base, in `target/test/dist/NAME`.
fn made(shell: &Shell, name: &str) -> Result<(Dist, PathBuf)> {
    let out = util::target_dir().join("test/dist").join(name);
    shell.remove_path(&out)?;
    let dist = Dist::of(&Upstream::Pinned(PRIMARY))?;
    dist.write(&out, None)?;
    Ok((dist, out))
}

/// The archive builds, passes all tests and installs where there is no cargo; a project uses what was installed.
pub fn archive(shell: &Shell) -> Result<usize> {
    let (dist, out) = made(shell, "archive")?;
    let (cmake, ctest) = (tools::cmake()?, tools::ctest()?);
    let no_cargo = out.join("no-cargo"); // one that only fails; the real one may be where the compiler is
    shell.create_dir(&no_cargo)?;
    util::write_atomic(&no_cargo.join("cargo"), b"#!/bin/sh\necho 'there is no cargo here' >&2\nexit 1\n", true)?;
    let with_tools = tools::path_with_tools()?;
    let path = std::iter::once(no_cargo).chain(std::env::split_paths(&with_tools));
    let _no_cargo = shell.push_env("PATH", std::env::join_paths(path)?);
    let _in_out = shell.push_dir(&out);
    let (archive, source) = (format!("{}.tar.gz", dist.name()), dist.name());
    run(cmd!(shell, "{cmake} -E tar xf {archive}"))?;
    let prefix = format!("-DCMAKE_INSTALL_PREFIX={}", out.join("prefix").display());
    run(cmd!(shell, "{cmake} -S {source} -B build -G Ninja {prefix}"))?;
    run(cmd!(shell, "{cmake} --build build"))?;
    run(cmd!(shell, "{ctest} --test-dir build --no-tests=error --output-on-failure"))?;
    run(cmd!(shell, "{cmake} --install build"))?;
    consumers::find_package(shell, &out.join("prefix"), "dist")?;
    Ok(4)
}

/// The one file, compiled with a program by one command.
pub fn single(shell: &Shell) -> Result<usize> {
    let (_, out) = made(shell, "single")?;
    let program = compile_single(shell, &out, &cc(), &["-lpthread"], "program")?;
    run(cmd!(shell, "{program}"))?;
    Ok(1)
}

/// The same for Windows; returns the program, which this machine may be able to run.
pub fn single_mingw(shell: &Shell) -> Result<PathBuf> {
    let (_, out) = made(shell, "single-mingw")?;
    let libraries = ["-static", "-lpsapi", "-lshell32", "-luser32", "-ladvapi32", "-lbcrypt"];
    compile_single(shell, &out, "x86_64-w64-mingw32-gcc-posix", &libraries, "program.exe")
}

fn compile_single(shell: &Shell, out: &Path, cc: &str, libraries: &[&str], program: &str) -> Result<PathBuf> {
    let user = util::repo_root().join("xtask/consumer/main.c");
    let (single, program) = (out.join("single"), out.join(program));
    let _in_single = shell.push_dir(single);
    run(cmd!(shell, "{cc} -O2 -DNDEBUG -DMI_PPROF=1 -I. mimalloc-prof.c {user} {libraries...} -o {program}"))?;
    Ok(program)
}

/// The recipes say what they should, in the syntax of those who read them.
pub fn recipes(shell: &Shell) -> Result<usize> {
    let (dist, out) = made(shell, "recipes")?;
    ensure_recipes(shell, &dist, &out)
}

fn ensure_recipes(shell: &Shell, dist: &Dist, out: &Path) -> Result<usize> {
    let manifest: serde_json::Value = serde_json::from_slice(&util::read(&out.join("vcpkg/mimalloc/vcpkg.json"))?)?;
    ensure!(manifest["name"] == "mimalloc" && manifest["version-string"] == *dist.version, "vcpkg.json: {manifest}");
    let python = tools::find("python3").or_else(|| tools::find("python")).context("python3 is not on PATH")?;
    let recipe = out.join("conan/conanfile.py");
    let parse = "import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])";
    run(cmd!(shell, "{python} -c {parse} {recipe}"))?;
    let data = String::from_utf8(util::read(&out.join("conan/conandata.yml"))?)?;
    let archive = util::read(&out.join(format!("{}.tar.gz", dist.name())))?;
    let expected = super::hex(&<sha2::Sha256 as sha2::Digest>::digest(&archive));
    ensure!(data.contains(&format!("    sha256: \"{expected}\"\n")), "conandata.yml:\n{data}");
    Ok(3)
}

/// vcpkg's port, carried out with stand-ins for vcpkg's functions, for both kinds of library.
pub fn vcpkg(shell: &Shell) -> Result<usize> {
    let (_, out) = made(shell, "vcpkg")?;
    for linkage in ["static", "dynamic"] {
        run_port(shell, &out, linkage)?;
    }
    Ok(2)
}

fn run_port(shell: &Shell, out: &Path, linkage: &str) -> Result<()> {
    let script = util::repo_root().join("xtask/packaging/vcpkg-check.cmake");
    let port = format!("-DPORT_DIR={}", out.join("vcpkg/mimalloc").display());
    let scratch = format!("-DSCRATCH={}", out.join(linkage).display());
    let linkage = format!("-DVCPKG_LIBRARY_LINKAGE={linkage}");
    run(cmd!(shell, "cmake {port} {scratch} {linkage} -P {script}")).map(drop)
}

/// Each fault in what `dist` makes must be noticed; returns how many.
pub fn planted(shell: &Shell) -> Result<usize> {
    type Check = fn(&Shell, &Dist, &Path) -> Result<()>;
    let recipes: Check = |shell, dist, out| ensure_recipes(shell, dist, out).map(drop);
    let port: Check = |shell, _, out| run_port(shell, out, "static");
    let single: Check = |shell, _, out| compile_single(shell, out, &cc(), &["-lpthread"], "program").map(drop);
    let faults: [(&str, &str, &str, Check); 6] = [
        ("vcpkg/mimalloc/vcpkg.json", "\"license\"", "license", recipes),
        ("conan/conanfile.py", "def build(self):", "def build(self)", recipes),
        ("conan/conandata.yml", "sha256: \"", "sha256: \"0", recipes),
        ("vcpkg/mimalloc/portfile.cmake", "SHA512 ", "SHA512 0", port),
        ("vcpkg/mimalloc/portfile.cmake", "vcpkg_copy_pdbs", "vcpkg_copy_pdb", port),
        ("single/mimalloc-prof.c", "typedef struct mi_page_s", "typedef struct mi_leaf_s", single),
    ];
    for (file, text, fault, check) in faults {
        let (dist, out) = made(shell, "planted")?;
        let path = out.join(file);
        let source = String::from_utf8(util::read(&path)?)?;
        ensure!(source.contains(text), "{file}: no '{text}' to plant a fault in");
        std::fs::write(&path, source.replacen(text, fault, 1))?;
        if check(shell, &dist, &out).is_ok() {
            bail!("{file}: '{fault}' instead of '{text}' was not noticed");
        }
    }
    Ok(faults.len())
}
