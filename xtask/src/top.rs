//! `cargo xtask top`: the functions that hold the memory, as a table like that of `pprof -top`.

use crate::profile::{Profile, Sample};
use crate::symbols::{Symbolizer, Unnamed};
use anyhow::{Context, Result};
use regex_lite::Regex;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// A profile: profile.proto (gzip'd or raw) or heap_v2 text.
    file: PathBuf,
    /// Show only what came, or went, since this earlier profile.
    #[arg(long, value_name = "OLD")]
    base: Option<PathBuf>,
    /// The program that was profiled, if it is no longer where the profile says.
    #[arg(long, value_name = "PATH")]
    exe: Option<PathBuf>,
    /// Sort by the memory held by a function and its callees.
    #[arg(long)]
    cum: bool,
    /// Show code without a name as binary+0xoffset, not as [binary].
    #[arg(long)]
    offsets: bool,
    /// Rows to show.
    #[arg(short = 'n', default_value_t = 30, value_name = "ROWS")]
    rows: usize,
    /// Sample type: inuse_space or alloc_space [default: what the profile names].
    #[arg(long = "type", value_name = "NAME")]
    sample_type: Option<String>,
}

pub fn run(args: Args) -> Result<()> {
    let profile = Profile::read(&args.file)?;
    let named = if profile.default_type.is_empty() { "inuse_space" } else { &profile.default_type };
    let sample_type = args.sample_type.as_deref().unwrap_or(named);
    let mut report = args.report(&args.file, &profile, sample_type)?;
    if let Some(base) = &args.base {
        report = report.since(args.report(base, &Profile::read(base)?, sample_type)?);
    }
    print(&(heading(&profile, &report, &args) + &report.table(args.rows, args.cum)))
}

impl Args {
    fn report(&self, file: &Path, profile: &Profile, sample_type: &str) -> Result<Report> {
        let unnamed = if self.offsets { Unnamed::Offset } else { Unnamed::Binary };
        let symbolizer = Symbolizer::new(&profile.mappings, self.exe.as_deref(), unnamed)?;
        Report::new(profile, &symbolizer, sample_type).with_context(|| file.display().to_string())
    }
}

/// A reader that closes the pipe early, as `head` does, has seen enough.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Bytes and objects per function.
pub struct Report {
    pub sample_type: String,
    pub total: Amount,
    /// By flat bytes, the largest first.
    pub rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    pub bytes: i64,
    pub objects: i64,
}

#[derive(Debug, Default, PartialEq)]
pub struct Row {
    pub function: String,
    /// Allocated by the function itself.
    pub flat: Amount,
    /// Allocated by the function or by what it calls.
    pub cum: Amount,
}

impl Report {
    pub fn new(profile: &Profile, symbolizer: &Symbolizer, sample_type: &str) -> Result<Report> {
        let columns = Columns::find(profile, sample_type)?;
        let names: Vec<Vec<String>> = profile
            .locations
            .iter()
            .map(|location| match location.functions.is_empty() {
                true => symbolizer.functions(location.address, location.mapping),
                false => location.functions.clone(),
            })
            .collect();

        let dropped = Dropped::find(profile, names.iter().flatten().map(String::as_str))?;
        let mut sums = Sums::default();
        for sample in &profile.samples {
            let stack: Vec<&str> =
                sample.stack.iter().flat_map(|&location| &names[location]).map(String::as_str).collect();
            sums.add(dropped.callers(&stack), columns.amount(sample));
        }
        Ok(sums.into_report(sample_type))
    }

    /// What it has more than an earlier one, which is negative for what went.
    pub fn since(self, base: Report) -> Report {
        let mut functions: HashMap<String, (Amount, Amount)> = HashMap::new();
        for (row, sign) in self.rows.into_iter().map(|row| (row, 1)).chain(base.rows.into_iter().map(|row| (row, -1))) {
            let (flat, cum) = functions.entry(row.function).or_default();
            flat.add(row.flat.times(sign));
            cum.add(row.cum.times(sign));
        }
        let mut total = self.total;
        total.add(base.total.times(-1));
        Report::sorted(self.sample_type, total, functions)
    }

    fn sorted(sample_type: String, total: Amount, functions: HashMap<String, (Amount, Amount)>) -> Report {
        let row = |(function, (flat, cum))| Row { function, flat, cum };
        let holds = |row: &Row| (row.flat, row.cum) != Default::default();
        let mut rows: Vec<Row> = functions.into_iter().map(row).filter(holds).collect();
        rows.sort_by(|a, b| {
            let size = |row: &Row| std::cmp::Reverse((row.flat.bytes, row.cum.bytes));
            size(a).cmp(&size(b)).then_with(|| a.function.cmp(&b.function))
        });
        Report { sample_type, total, rows }
    }

    pub fn row(&self, function: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.function == function)
    }

    pub fn table(&self, limit: usize, by_cum: bool) -> String {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        if by_cum {
            // Callers before callees that hold as much.
            rows.sort_by_key(|row| (std::cmp::Reverse(row.cum.bytes), row.flat.bytes));
        }
        let mut table = format!(
            "{:>10} {:>7} {:>7} {:>10} {:>7} {:>10}  function\n",
            "flat", "flat%", "sum%", "cum", "cum%", "objects"
        );
        let mut sum = 0;
        for row in rows.iter().take(limit) {
            sum += row.flat.bytes;
            let objects = if by_cum { row.cum.objects } else { row.flat.objects };
            let _ = writeln!(
                table,
                "{:>10} {:>7} {:>7} {:>10} {:>7} {objects:>10}  {}",
                bytes(row.flat.bytes),
                self.percent(row.flat.bytes),
                self.percent(sum),
                bytes(row.cum.bytes),
                self.percent(row.cum.bytes),
                row.function
            );
        }
        if rows.len() > limit {
            let _ = writeln!(table, "({} more functions; -n shows more rows)", rows.len() - limit);
        }
        table
    }

    fn percent(&self, value: i64) -> String {
        match (value, self.total.bytes) {
            (0, _) | (_, 0) => "0%".into(),
            (value, total) => format!("{:.2}%", 100.0 * value as f64 / total.abs() as f64),
        }
    }
}

fn heading(profile: &Profile, report: &Report, args: &Args) -> String {
    let mut text = format!("file      {}\n", args.file.display());
    if let Some(base) = &args.base {
        let _ = writeln!(text, "since     {}", base.display());
    }
    if let Some(main) = profile.mappings.first() {
        let _ = writeln!(text, "program   {}", main.path);
    }
    let _ = writeln!(text, "type      {}", report.sample_type);
    let _ = writeln!(text, "total     {} in {} objects (estimate)", bytes(report.total.bytes), report.total.objects);
    let _ = writeln!(text, "rate      one sample per {} on average", bytes(profile.rate));
    if profile.time_nanos > 0 {
        let _ = writeln!(text, "time      {}", utc(profile.time_nanos / 1_000_000_000));
    }
    if profile.duration_nanos > 0 {
        let _ = writeln!(text, "duration  {:.2} s", profile.duration_nanos as f64 / 1e9);
    }
    for comment in &profile.comments {
        let _ = writeln!(text, "comment   {comment}");
    }
    text + "\n"
}

/// A Unix time as `2026-11-30 16:01:44 UTC`.
fn utc(seconds: i64) -> String {
    // Years that begin in March end with the leap day; 719,468 days lie between such a year 0 and 1970.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = 400 * era + year_of_era + i64::from(month <= 2);
    let second = seconds.rem_euclid(86_400);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

/// As pprof shows them: `512B`, `1.50kB`, `64MB`.
pub fn bytes(value: i64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = format!("{scaled:.2}");
    format!("{}{}", digits.trim_end_matches(".00"), UNITS[unit])
}

/// Where a sample keeps the bytes and the objects of one sample type.
struct Columns {
    space: usize,
    objects: Option<usize>,
}

impl Columns {
    fn find(profile: &Profile, sample_type: &str) -> Result<Columns> {
        let space = profile.column(sample_type).with_context(|| {
            let names: Vec<&str> = profile.sample_types.iter().map(|sample_type| sample_type.name.as_str()).collect();
            format!("has no sample type {sample_type}; it has {}", names.join(", "))
        })?;
        Ok(Columns { space, objects: profile.column(&sample_type.replace("space", "objects")) })
    }

    fn amount(&self, sample: &Sample) -> Amount {
        Amount { bytes: sample.values[self.space], objects: self.objects.map_or(0, |column| sample.values[column]) }
    }
}

/// The functions that belong to the allocator, by name.
struct Dropped<'a>(HashSet<&'a str>);

impl<'a> Dropped<'a> {
    fn find(profile: &Profile, names: impl Iterator<Item = &'a str>) -> Result<Dropped<'a>> {
        let Some(drop) = full_match(&profile.drop_frames)? else { return Ok(Dropped(HashSet::new())) };
        let keep = full_match(&profile.keep_frames)?;
        let kept = |name: &str| keep.as_ref().is_some_and(|keep| keep.is_match(name));
        let names: HashSet<&str> = names.collect();
        Ok(Dropped(names.into_iter().filter(|name| drop.is_match(name) && !kept(name)).collect()))
    }

    /// A stack without the frames to drop and what they call. Like pprof, never drops before the first other frame
    /// from the root, so that something remains.
    fn callers<'s, 'n>(&self, stack: &'s [&'n str]) -> &'s [&'n str] {
        let Some(root) = stack.iter().rposition(|name| !self.drops(name)) else { return stack };
        match stack[..root].iter().rposition(|name| self.drops(name)) {
            Some(dropped) => &stack[dropped + 1..],
            None => stack,
        }
    }

    fn drops(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// An empty pattern is none.
fn full_match(pattern: &str) -> Result<Option<Regex>> {
    if pattern.is_empty() {
        return Ok(None);
    }
    Regex::new(&format!("^(?:{pattern})$")).map(Some).with_context(|| format!("frame pattern {pattern:?}"))
}

#[derive(Default)]
struct Sums<'a> {
    total: Amount,
    functions: HashMap<&'a str, (Amount, Amount)>,
}

impl<'a> Sums<'a> {
    fn add(&mut self, stack: &[&'a str], amount: Amount) {
        self.total.add(amount);
        let stack = if stack.is_empty() { &["[no stack]"] } else { stack };
        self.functions.entry(stack[0]).or_default().0.add(amount);
        for (depth, function) in stack.iter().enumerate() {
            // A recursive function holds the memory once.
            if !stack[..depth].contains(function) {
                self.functions.entry(function).or_default().1.add(amount);
            }
        }
    }

    fn into_report(self, sample_type: &str) -> Report {
        let functions = self.functions.into_iter().map(|(function, amounts)| (function.to_string(), amounts));
        Report::sorted(sample_type.to_string(), self.total, functions.collect())
    }
}

impl Amount {
    fn add(&mut self, other: Amount) {
        // A file may hold any numbers.
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.objects = self.objects.saturating_add(other.objects);
    }

    fn times(self, factor: i64) -> Amount {
        Amount { bytes: self.bytes.saturating_mul(factor), objects: self.objects.saturating_mul(factor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Location, ValueType};

    const FUNCTIONS: [&str; 6] = ["main", "parse", "grow", "mi_malloc", "_mi_malloc_generic", "[other]"];

    /// A profile whose locations are `FUNCTIONS` and whose stacks are indices into them, leaf first.
    fn profile(samples: &[(&[usize], i64, i64)]) -> Profile {
        let value_type = |name: &str| ValueType { name: name.into(), unit: String::new() };
        let location = |name: &&str| Location { address: 1, mapping: None, functions: vec![name.to_string()] };
        let sample = |&(stack, objects, bytes): &(&[usize], i64, i64)| Sample {
            stack: stack.to_vec(),
            values: vec![objects, bytes],
        };
        Profile {
            sample_types: vec![value_type("inuse_objects"), value_type("inuse_space")],
            samples: samples.iter().map(sample).collect(),
            locations: FUNCTIONS.iter().map(location).collect(),
            drop_frames: "_?mi_.*".into(),
            ..Profile::default()
        }
    }

    fn report_of(profile: &Profile, sample_type: &str) -> Result<Report> {
        Report::new(profile, &Symbolizer::new(&[], None, Unnamed::Binary)?, sample_type)
    }

    fn report(samples: &[(&[usize], i64, i64)]) -> Report {
        report_of(&profile(samples), "inuse_space").unwrap()
    }

    fn amounts(report: &Report, function: &str) -> (i64, i64) {
        let row = report.row(function).unwrap();
        (row.flat.bytes, row.cum.bytes)
    }

    #[test]
    fn flat_is_the_leafs_and_cum_the_callers() {
        let report = report(&[(&[1, 0], 2, 200), (&[0], 1, 50), (&[5], 4, 7)]);
        assert_eq!(report.total, Amount { bytes: 257, objects: 7 });
        assert_eq!(amounts(&report, "parse"), (200, 200));
        assert_eq!(amounts(&report, "main"), (50, 250));
        assert_eq!(amounts(&report, "[other]"), (7, 7));
        let order: Vec<_> = report.rows.iter().map(|row| row.function.as_str()).collect();
        assert_eq!(order, ["parse", "main", "[other]"]);
    }

    #[test]
    fn a_recursive_function_counts_once() {
        let report = report(&[(&[2, 1, 2, 1, 0], 1, 64)]);
        assert_eq!(amounts(&report, "grow"), (64, 64));
        assert_eq!(amounts(&report, "parse"), (0, 64));
    }

    #[test]
    fn the_allocator_is_dropped_with_what_it_calls() {
        let report = report(&[(&[4, 3, 1, 0], 1, 10), (&[2, 3, 1, 0], 1, 20)]);
        assert_eq!(amounts(&report, "parse"), (30, 30));
        assert!(report.row("mi_malloc").is_none() && report.row("grow").is_none());
    }

    #[test]
    fn a_stack_of_allocator_frames_only_is_kept() {
        assert_eq!(amounts(&report(&[(&[4, 3], 1, 10)]), "_mi_malloc_generic"), (10, 10));
    }

    #[test]
    fn keep_wins_over_drop() {
        let patterns = Profile { drop_frames: "mi_.*".into(), keep_frames: "mi_kept".into(), ..Profile::default() };
        let names = ["mi_malloc", "mi_kept", "xmi_malloc", "main"];
        let dropped = Dropped::find(&patterns, names.into_iter()).unwrap();
        assert_eq!(dropped.callers(&["mi_malloc", "mi_kept", "main"]), ["mi_kept", "main"]);
        assert_eq!(dropped.callers(&["xmi_malloc", "main"]), ["xmi_malloc", "main"], "matches are full");
    }

    #[test]
    fn a_sample_without_a_stack_is_shown() {
        assert_eq!(amounts(&report(&[(&[], 1, 10)]), "[no stack]"), (10, 10));
    }

    #[test]
    fn since_a_base_only_what_changed_is_left() {
        let old = report(&[(&[1, 0], 2, 200), (&[2, 0], 1, 50), (&[0], 1, 9)]);
        let new = report(&[(&[1, 0], 3, 300), (&[5], 4, 7), (&[0], 1, 9)]).since(old);
        assert_eq!(new.total, Amount { bytes: 57, objects: 4 });
        assert_eq!(new.row("parse").unwrap().flat, Amount { bytes: 100, objects: 1 });
        assert_eq!((amounts(&new, "main"), amounts(&new, "grow")), ((0, 50), (-50, -50)));
        let order: Vec<_> = new.rows.iter().map(|row| row.function.as_str()).collect();
        assert_eq!(order, ["parse", "[other]", "main", "grow"]);
        let table = new.table(9, false);
        let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["-50B", "-87.72%", "100.00%", "-50B", "-87.72%", "-1", "grow"]);
    }

    #[test]
    fn the_table_shows_shares_and_hides_the_tail() {
        let table = report(&[(&[1, 0], 2, 3072), (&[0], 1, 1024)]).table(1, false);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["3kB", "75.00%", "75.00%", "3kB", "75.00%", "2", "parse"]);
        assert_eq!(lines[2].join(" "), "(1 more functions; -n shows more rows)");
    }

    #[test]
    fn sorting_by_cum_puts_the_root_first() {
        let table = report(&[(&[1, 0], 2, 3072)]).table(9, true);
        let first: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(first, ["0B", "0%", "0%", "3kB", "100.00%", "2", "main"]);
    }

    #[test]
    fn a_missing_sample_type_names_those_there() {
        let error = report_of(&profile(&[]), "alloc_space").err().unwrap();
        assert_eq!(error.to_string(), "has no sample type alloc_space; it has inuse_objects, inuse_space");
    }

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_709_210_096), "2024-02-29 12:34:56 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59:59 UTC");
    }

    #[test]
    fn bytes_are_written_as_pprof_writes_them() {
        assert_eq!([0, 512, 1536, 64 << 20, 3 << 40].map(bytes), ["0B", "512B", "1.50kB", "64MB", "3TB"]);
    }
}
