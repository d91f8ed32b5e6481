//! The README's own commands, run as a reader would type them.

use crate::cmake::run;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use xshell::{cmd, Shell};

const RUN_HERE: [&str; 5] = ["doctor", "demo", "top", "materialize", "reapply"];
/// What CI starts with.
const CI: [&str; 2] = [".ci/run", ".github/workflows/ci.yml"];

/// Each `cargo xtask` command in the README exists, and runs below or is what CI starts with.
pub fn coverage() -> Result<usize> {
    let texts = CI.iter().map(|path| text(path)).collect::<Result<Vec<_>>>()?;
    ensure_covered(&text("README.md")?, &texts)
}

/// Commands that do not exist, that nothing runs, and a README without commands must not pass.
pub fn coverage_planted() -> Result<usize> {
    let ci = [text(CI[0])?];
    let readmes = ["    cargo xtask tset\n", "    cargo xtask demo --fast\n", "see `cargo xtask fuzz`", "no commands"];
    for readme in readmes {
        ensure!(ensure_covered(readme, &ci).is_err(), "not noticed: {readme}");
    }
    Ok(readmes.len())
}

fn text(path: &str) -> Result<String> {
    std::fs::read_to_string(util::repo_root().join(path)).with_context(|| path.to_string())
}

fn ensure_covered(readme: &str, ci: &[String]) -> Result<usize> {
    let started: Vec<&str> = ci.iter().flat_map(|text| commands_in(text)).filter_map(subcommand).collect();
    let commands: Vec<&str> = commands_in(readme).collect();
    for command in &commands {
        if let Err(error) = crate::Command::try_parse_from(command.split_whitespace().skip(1)) {
            bail!("README.md: {command}: {}", error.to_string().lines().next().unwrap_or_default());
        }
        let name = subcommand(command).unwrap_or_default();
        ensure!(RUN_HERE.contains(&name) || started.contains(&name), "README.md: {command}: nothing runs it");
    }
    ensure!(!commands.is_empty(), "README.md: there are no commands in it");
    Ok(commands.len())
}

/// `cargo xtask …` up to the end of the line, a comment or a quote.
fn commands_in(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("cargo xtask ").map(|(at, _)| &text[at..]);
    starts.filter_map(|rest| rest.split(['\n', '#', '`', '\'']).next()).map(str::trim)
}

fn subcommand(command: &str) -> Option<&str> {
    command.split_whitespace().nth(2)
}

/// Runs `cargo xtask demo`, `doctor`, `top`, `materialize` and `reapply`. Returns how many commands ran.
pub fn commands(shell: &Shell) -> Result<usize> {
    let scratch = util::target_dir().join("test/readme");
    shell.remove_path(&scratch)?;
    let (tree, checkout) = (scratch.join("tree"), scratch.join("checkout"));

    run(cmd!(shell, "cargo xtask doctor"))?;
    let demo = run(cmd!(shell, "cargo xtask demo"))?;
    ensure!(demo.contains("python3"), "the demo does not show python3:\n{demo}");
    let table = run(cmd!(shell, "cargo xtask top target/demo/leak.pb.gz"))?;
    ensure!(table.contains("request_parse"), "top does not name a function of the example:\n{table}");

    run(cmd!(shell, "cargo xtask materialize --out {tree}"))?;
    let pristine = Upstream::parse(PRIMARY)?.folder()?;
    run(cmd!(shell, "cp -r {pristine} {checkout}"))?;
    run(cmd!(shell, "cargo xtask reapply --upstream {checkout}"))?;
    run(cmd!(shell, "cargo xtask reapply --upstream {checkout} --check"))?;
    for file in ["src/page.c", "src/profile.c", "CMakeLists.txt"] {
        let [made, applied] = [&tree, &checkout].map(|folder| folder.join(file));
        ensure!(util::read(&made)? == util::read(&applied)?, "{}: materialize and reapply differ", applied.display());
    }
    Ok(6)
}
