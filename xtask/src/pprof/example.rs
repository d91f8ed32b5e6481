//! `examples/leak.c`, with samples.

use super::stock::Dump;
use super::views::values;
use super::{Bench, Held, FORMATS};
use crate::cmake::run;
use crate::util;
use anyhow::{ensure, Result};
use std::path::PathBuf;
use xshell::{cmd, Shell};

const RATE: u64 = 65536;

/// What it wrote, and what it says it held.
#[derive(Clone)]
pub struct Example<'a> {
    shell: &'a Shell,
    program: PathBuf,
    pub rate: u64,
    held: Vec<Held>,
}

impl Example<'_> {
    pub fn run<'a>(bench: &'a Bench) -> Result<Example<'a>> {
        let (shell, folder) = (bench.shell, bench.folder.join("example"));
        let program = folder.join("leak");
        shell.create_dir(&folder)?;
        bench.compile(&util::repo_root().join("examples/leak.c"), &[], &program)?;
        let mut example = Example { shell, program, rate: RATE, held: Vec::new() };
        let [dump, at_exit] = FORMATS.map(|format| example.path(format));
        let program = &example.program;
        let command = cmd!(shell, "{program} {dump}").env("MIMALLOC_PROF_DUMP_AT_EXIT", at_exit);
        let output = run(command.env("MIMALLOC_PROF_SAMPLE_RATE", RATE.to_string()))?;
        example.held = Held::all(&output, "held")?;
        ensure!(!example.held.is_empty(), "the example says nothing of its memory");
        Ok(example)
    }

    pub fn path(&self, format: &str) -> PathBuf {
        self.program.with_extension(format)
    }

    /// To the byte at a rate of 1, else within four standard deviations.
    pub fn compare(&self, format: &str) -> Result<usize> {
        let program = (format == "heap").then(|| self.program.clone());
        let dump = Dump { shell: self.shell, path: self.path(format), program };
        let tables = [dump.top(&["-sample_index=inuse_space"])?, dump.top(&["-sample_index=inuse_objects"])?];
        for held in &self.held {
            let bytes = if self.rate == 1 { 0.0 } else { 4.0 * (held.bytes * self.rate as f64).sqrt() };
            let size = held.bytes / held.objects.max(1.0);
            let tolerances = [bytes, 2.0 * bytes / size.max(1.0)];
            for ((table, (what, exact)), tolerance) in tables.iter().zip(values(held)).zip(tolerances) {
                let (function, found) = (&held.function, table.flat(&held.function));
                let right = (found - exact).abs() <= tolerance;
                ensure!(right, "{}: {function} holds {exact}, and pprof says {found} ({what})", dump.display());
            }
        }
        Ok(2 * self.held.len())
    }
}
