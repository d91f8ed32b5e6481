//! `cargo xtask`: materializes the mimalloc tree with the profiler, builds, tests and demonstrates it.

mod amalgamate;
mod checkout;
mod cmake;
mod consumers;
mod demo;
mod dist;
mod doctor;
mod document;
mod drift;
mod fastpath;
mod fuzz;
mod git;
mod hooks;
mod materialize;
mod measure;
mod offproof;
mod ours;
mod pin;
mod platform;
mod pprof;
mod profile;
mod readme;
mod reapply;
mod region;
mod scope;
mod symbols;
mod test;
mod test_all;
mod text;
mod tools;
mod top;
mod tree;
mod upstream;
mod upstream_pr;
mod util;
mod version;
mod workflows;

use clap::Parser;
use std::process::ExitCode;

/// mi_prof: a sampling heap profiler inside mimalloc
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Make a mimalloc tree with the profiler in it, to be built with plain CMake
    Materialize(materialize::Args),
    /// Put the profiler into an existing mimalloc checkout, all or nothing
    Reapply(reapply::Args),
    /// Say whether the profiler fits every pinned mimalloc, and others, and where it does not
    Drift(drift::Args),
    /// Pin the mimalloc that a version of the crate libmimalloc-sys2 ships
    Pin(pin::Args),
    /// Make a branch, a series of patches and a text for a pull request to mimalloc; nothing is pushed
    UpstreamPr(upstream_pr::Args),
    /// Make a source archive, the library as one C file, and package recipes
    Dist(dist::Args),
    /// Make docs/hooks.md of the list of hooks
    Hooks(hooks::document::Args),
    /// Run everything that must hold before a change is good, in minutes
    Test(test::Args),
    /// The same for every system and toolchain that this machine can build for, run or emulate
    TestAll(test_all::Args),
    /// Fuzz the allocator with the profiler in it, against a model of what is live
    Fuzz(fuzz::Args),
    /// Say which tools are there, which are missing and which install themselves
    Doctor,
    /// Build the library and show what it finds, in an example and in programs that were not changed for it
    Demo,
    /// Show the functions that hold the memory, from a profile
    Top(top::Args),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Materialize(args) => materialize::run(args),
        Command::Reapply(args) => reapply::run(args),
        Command::Drift(args) => drift::execute(args),
        Command::Pin(args) => pin::run(args),
        Command::UpstreamPr(args) => upstream_pr::run(args),
        Command::Dist(args) => dist::run(args),
        Command::Hooks(args) => hooks::document::run(args),
        Command::Test(args) => test::execute(args),
        Command::TestAll(args) => test_all::execute(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Doctor => doctor::run(),
        Command::Demo => demo::run(),
        Command::Top(args) => top::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
