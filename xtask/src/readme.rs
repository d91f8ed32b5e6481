//! The README's own commands, run as a reader would type them.

use crate::cmake::run;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{ensure, Result};
use xshell::{cmd, Shell};

/// Runs `cargo xtask demo`, `doctor`, `top`, `materialize` and `reapply`. Returns how many commands ran.
pub fn commands(shell: &Shell) -> Result<usize> {
    let scratch = util::target_dir().join("test/readme");
    shell.remove_path(&scratch)?;
    let (tree, checkout) = (scratch.join("tree"), scratch.join("checkout"));

    run(cmd!(shell, "cargo xtask doctor"))?;
    run(cmd!(shell, "cargo xtask demo"))?;
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
