//! What pprof must show of a dump, and our own reader.

use super::stock::Dump;
use super::{stock, Expected, Held, Subject};
use crate::profile::Profile;
use crate::symbols::{Symbolizer, Unnamed};
use crate::top::Report;
use anyhow::{ensure, Context, Result};

/// Returns how many values are right.
pub type View = fn(&Subject, &str, &Expected) -> Result<usize>;

pub const VIEWS: [(&str, View); 7] = [
    ("-top", top),
    ("-base", base),
    ("-traces", traces),
    ("-raw", raw),
    ("-svg", svg),
    ("-comments", comments),
    ("cargo xtask top", own_top),
];

pub fn values(held: &Held) -> [(&'static str, f64); 2] {
    [("-sample_index=inuse_space", held.bytes), ("-sample_index=inuse_objects", held.objects)]
}

pub fn top(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    check_tables(&subject.dump(2, format), &[], &expected.held)
}

/// Only what came since the first dump, and all of it.
pub fn base(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    let first = format!("-base={}", subject.path(1, format).display());
    let dump = subject.dump(2, format);
    let total = Held::sum(&expected.grew, String::new()).bytes;
    let found = dump.top(&[&first, "-sample_index=inuse_space"])?.total();
    ensure!(found == total, "{total} bytes came, and pprof says {found}");
    check_tables(&dump, &[&first], &expected.grew)
}

fn check_tables(dump: &Dump, options: &[&str], all: &[Held]) -> Result<usize> {
    for at in 0..2 {
        let table = dump.top(&[options, &[values(&all[0])[at].0]].concat())?;
        for held in all {
            let ((what, exact), found) = (values(held)[at], table.flat(&held.function));
            ensure!(
                found == exact,
                "{}: {} holds {exact}, and pprof says {found} ({what})",
                dump.display(),
                held.function
            );
        }
    }
    Ok(2 * all.len())
}

/// The samples of a function make up what it holds, and are called from where it was called.
pub fn traces(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    let traces = stock::traces(&subject.dump(2, format).pprof(&["-traces"])?)?;
    for held in &expected.held {
        let of_it: Vec<_> = traces.iter().filter(|trace| trace.stack[0] == held.function).collect();
        let sum: f64 = of_it.iter().map(|trace| trace.value).sum();
        ensure!(sum == held.bytes, "{} holds {}, and its traces say {sum}", held.function, held.bytes);
    }
    let largest = traces.iter().max_by(|a, b| a.value.total_cmp(&b.value)).context("no traces")?;
    let stack = largest.stack.join(" < ");
    ensure!(
        largest.stack.get(1).is_some_and(|name| name == expected.caller),
        "not called by {}: {stack}",
        expected.caller
    );
    Ok(expected.held.len() + 1)
}

pub fn raw(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    let text = subject.dump(2, format).pprof(&["-raw"])?;
    let types = match format {
        "heap" => "objects/count space/bytes",
        _ => "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]",
    };
    let rate = format!("Period: {}", expected.rate);
    for line in [types, &rate] {
        ensure!(text.lines().any(|found| found == line), "no line '{line}':\n{text}");
    }
    let main = text.lines().skip_while(|line| *line != "Mappings").nth(1).unwrap_or_default();
    // pprof shows the file that it was told of.
    let shown =
        subject.dump(2, format).program.map_or(expected.program.clone(), |program| program.display().to_string());
    let mapping = format!("{shown} {}", expected.build_id);
    ensure!(main.starts_with("1: 0x") && main.contains(&mapping), "the first mapping is not {mapping}: {main}");
    if format == "heap" {
        let file = std::fs::read_to_string(subject.path(2, format))?;
        let path = expected.program.replace(' ', "\\040");
        ensure!(
            file.lines().any(|line| line.ends_with(&format!(" 00:00 0 {path}"))),
            "{path} is not among its mappings"
        );
    }
    Ok(4)
}

/// A box for each function that holds something, with its value.
pub fn svg(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    let picture = subject.dump(2, format).pprof(&["-svg", "-sample_index=inuse_space"])?;
    ensure!(picture.contains("<svg ") && picture.trim_end().ends_with("</svg>"), "not a picture:\n{picture}");
    let shown: Vec<&Held> = expected.held.iter().filter(|held| held.bytes > 0.0).collect();
    for held in &shown {
        let name = held.function.replace('<', "&lt;").replace('>', "&gt;");
        let title = format!("xlink:title=\"{name} ({}B)\"", held.bytes);
        ensure!(picture.contains(&title), "no box with {title}");
    }
    Ok(shown.len())
}

fn comments(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    let text = subject.dump(2, format).pprof(&["-comments"])?;
    let rate = format!("sample rate: {} bytes", expected.rate);
    if format == "heap" {
        let file = std::fs::read_to_string(subject.path(2, format))?;
        let header = format!("@ heap_v2/{}\n", expected.rate);
        ensure!(text.trim().is_empty(), "comments of text:\n{text}");
        ensure!(file.contains(&header), "no rate {} in its header", expected.rate);
        return Ok(1);
    }
    ensure!(
        text.contains(&expected.comment) && text.contains(&rate),
        "no '{}' and '{rate}' in:\n{text}",
        expected.comment
    );
    Ok(2)
}

/// Our own reader says the same, also where pprof finds no names, and knows members and inlined functions.
fn own_top(subject: &Subject, format: &str, expected: &Expected) -> Result<usize> {
    let report = |number| {
        let profile = Profile::read(&subject.path(number, format))?;
        let symbolizer = Symbolizer::new(&profile.mappings, subject.debug.as_deref(), Unnamed::Binary)?;
        ensure!(profile.rate as u64 == expected.rate, "its rate is {}", profile.rate);
        Report::new(&profile, &symbolizer, "inuse_space")
    };
    let (first, report) = (report(1)?, report(2)?);
    let mut named = Held::all(&subject.output, "held")?;
    named.extend(expected.inner.clone());
    for held in &named {
        let found = report.row(&held.function).map_or(0, |row| row.cum.bytes);
        ensure!(found as f64 == held.bytes, "{} holds {}, and top says {found}", held.function, held.bytes);
    }
    let grown = report.since(first);
    let grew = Held::all(&subject.output, "grew")?;
    for held in &grew {
        let found = grown.row(&held.function).map_or(0, |row| row.cum.bytes);
        ensure!(found as f64 == held.bytes, "{} grew by {}, and top says {found}", held.function, held.bytes);
    }
    Ok(named.len() + grew.len())
}
