//! `cargo xtask drift`: does the profiler still fit? Every pin, and any other mimalloc, in one table.

use crate::cmake::{self, run, Build};
use crate::hooks::excerpt::Excerpt;
use crate::hooks::{self, Hook, State};
use crate::upstream::{self, pins, Upstream};
use crate::util;
use crate::version::Version;
use crate::{materialize, offproof, text};
use anyhow::{bail, Context, Result};
use serde::Serialize;
use xshell::{cmd, Shell};

#[derive(clap::Args)]
pub struct Args {
    /// Another mimalloc besides the pins: the folder of a checkout; may be given several times
    #[arg(long, value_name = "PATH")]
    upstream: Vec<String>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Only apply the hooks and compare the source: seconds instead of minutes
    #[arg(long)]
    no_build: bool,
    /// Do not ask cargo for a newer crate
    #[arg(long)]
    offline: bool,
}

pub fn execute(args: Args) -> Result<()> {
    let pinned = pins().iter().map(|pin| Ok(Upstream::Pinned(pin)));
    let others = args.upstream.iter().map(|name| Upstream::parse(name));
    let mut upstreams: Vec<Upstream> = pinned.chain(others).collect::<Result<_>>()?;
    upstreams.dedup_by_key(|upstream| upstream.label());
    let report = Report::of(&upstreams, !args.no_build, !args.offline)?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => report.print(),
    }
    report.verdict()
}

#[derive(Serialize)]
pub struct Report {
    upstreams: Vec<Fit>,
    drifts: Vec<Drifted>,
    /// A crate that is newer than those of the pins.
    newer_crate: Option<String>,
    /// Why cargo could not be asked for one.
    crate_unknown: Option<String>,
}

/// How the hooks fit one mimalloc.
#[derive(Serialize)]
struct Fit {
    upstream: String,
    version: String,
    hooks: Vec<Placed>,
    /// Lines that the hooks add.
    inserted_lines: usize,
    on: Check,
    off: Check,
    tests: Check,
    off_proof: Check,
}

#[derive(Serialize)]
struct Placed {
    hook: String,
    file: String,
    state: &'static str,
    line: Option<usize>,
    problem: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "result", content = "detail")]
enum Check {
    Passed,
    Failed(String),
    NotRun,
}

/// A hook whose anchor is gone, as a person needs to see it to move the anchor.
#[derive(Serialize)]
struct Drifted {
    hook: String,
    file: String,
    upstream: String,
    problem: String,
    /// The last version that took the hook.
    last: Option<String>,
    was: Option<Excerpt>,
    is: Option<Excerpt>,
}

impl Check {
    fn of<T>(result: Result<T>) -> Check {
        result.map_or_else(|error| Check::Failed(format!("{error:#}")), |_| Check::Passed)
    }

    fn text(&self, passed: &str) -> String {
        match self {
            Check::Passed => passed.to_string(),
            Check::Failed(_) => "FAILED".to_string(),
            Check::NotRun => "-".to_string(),
        }
    }
}

impl Report {
    pub fn of(upstreams: &[Upstream], build: bool, ask: bool) -> Result<Report> {
        let hooks = hooks::load(&util::hooks_file())?;
        let shell = if build { Some(cmake::shell()?) } else { None };
        let mut fits = Vec::new();
        for upstream in upstreams {
            fits.push(Fit::of(upstream, &hooks, shell.as_ref()).with_context(|| upstream.label())?);
        }
        let drifts = drifts(upstreams, &hooks, &fits)?;
        let (newer_crate, crate_unknown) = match ask.then(upstream::newer_crate) {
            None => (None, None),
            Some(Ok(newer)) => (newer, None),
            Some(Err(error)) => (None, Some(format!("{error:#}"))),
        };
        Ok(Report { upstreams: fits, drifts, newer_crate, crate_unknown })
    }

    pub fn print(&self) {
        let row = |name: &str, cell: &dyn Fn(&Fit) -> String| {
            let cells: String = self.upstreams.iter().map(|fit| format!(" {:<14}", cell(fit))).collect();
            println!("{}", format!("{name:<26}{cells}").trim_end());
        };
        row("", &|fit| fit.upstream.clone());
        for hook in &self.upstreams[0].hooks {
            row(&hook.hook, &|fit| fit.cell(&hook.hook));
        }
        println!();
        row("inserted lines", &|fit| fit.inserted_lines.to_string());
        row("compiles, ON", &|fit| fit.on.text("yes"));
        row("compiles, OFF", &|fit| fit.off.text("yes"));
        row("test-profile", &|fit| fit.tests.text("passed"));
        row("OFF proof", &|fit| fit.off_proof.text(if matches!(fit.on, Check::NotRun) { "source" } else { "holds" }));
        for fit in &self.upstreams {
            for (name, check) in fit.checks() {
                if let Check::Failed(error) = check {
                    println!("\n{}: {name}: {error}", fit.upstream);
                }
            }
        }
        self.drifts.iter().for_each(Drifted::print);
        let code: Vec<_> = self.upstreams.iter().map(|fit| fit.inserted_lines).collect();
        println!(
            "\n{} hooks, at most {} inserted lines",
            self.upstreams[0].hooks.len(),
            code.iter().max().unwrap_or(&0)
        );
        if let Some(newer) = &self.newer_crate {
            println!("{} {newer} is newer than the pins: cargo xtask pin {newer}", upstream::CRATE);
        }
        if let Some(error) = &self.crate_unknown {
            println!("whether there is a newer {} is not known: {error}", upstream::CRATE);
        }
    }

    pub fn verdict(&self) -> Result<()> {
        let unfit = |fit: &&Fit| fit.checks().iter().any(|(_, check)| matches!(check, Check::Failed(_)));
        let mut unfit: Vec<&str> = self.upstreams.iter().filter(unfit).map(|fit| fit.upstream.as_str()).collect();
        unfit.extend(self.drifts.iter().map(|drift| drift.upstream.as_str()));
        unfit.dedup();
        match unfit.is_empty() {
            true => Ok(()),
            false => bail!("{} drifted hooks; does not fit: {}", self.drifts.len(), unfit.join(", ")),
        }
    }
}

impl Fit {
    fn of(upstream: &Upstream, hooks: &[Hook], shell: Option<&Shell>) -> Result<Fit> {
        let tree = upstream.tree()?;
        let version = tree.version()?;
        let applied = hooks::apply(hooks, version, |file| tree.text(file))?;
        let mut fit = Fit {
            upstream: upstream.label(),
            version: version.to_string(),
            hooks: hooks.iter().map(|hook| Placed::of(hook, &applied)).collect(),
            inserted_lines: applied.outcomes.iter().map(|outcome| outcome.lines).sum(),
            on: Check::NotRun,
            off: Check::NotRun,
            tests: Check::NotRun,
            off_proof: Check::NotRun,
        };
        if applied.drifts().is_empty() {
            fit.check(upstream, shell);
        }
        Ok(fit)
    }

    fn check(&mut self, upstream: &Upstream, shell: Option<&Shell>) {
        let Some(shell) = shell else {
            self.off_proof = Check::of(offproof::source(upstream));
            return;
        };
        let build = build_on(shell, upstream);
        if let Ok(build) = &build {
            let test = build.folder.join("mimalloc-test-profile");
            self.tests = Check::of(run(cmd!(shell, "{test}")));
        }
        self.on = Check::of(build);
        self.off = Check::of(offproof::off_build(shell, upstream));
        if matches!(self.off, Check::Passed) {
            let proof = offproof::source(upstream).and_then(|()| offproof::code(shell, upstream));
            self.off_proof = Check::of(proof.and_then(|_| offproof::static_c(shell, upstream)));
        }
    }

    fn checks(&self) -> [(&str, &Check); 4] {
        [("ON", &self.on), ("OFF", &self.off), ("test-profile", &self.tests), ("OFF proof", &self.off_proof)]
    }

    fn cell(&self, hook: &str) -> String {
        let Some(placed) = self.hooks.iter().find(|placed| placed.hook == hook) else { return String::new() };
        match placed.line {
            Some(line) => format!("{} {line}", placed.state),
            None => placed.state.to_string(),
        }
    }
}

fn build_on(shell: &Shell, upstream: &Upstream) -> Result<Build> {
    let tree = materialize::tree_folder(upstream)?;
    let options = ["-DCMAKE_BUILD_TYPE=Release", "-DMI_BUILD_SHARED=OFF", "-DMI_BUILD_OBJECT=OFF", "-DMI_PPROF=ON"];
    let build = Build::configure(shell, &tree, &format!("drift/{}", upstream.label()), &options)?;
    build.build(shell, &["mimalloc-static", "mimalloc-test-profile"])?;
    Ok(build)
}

impl Placed {
    fn of(hook: &Hook, applied: &hooks::Applied) -> Placed {
        let outcome = applied.outcomes.iter().find(|outcome| outcome.hook == hook.name);
        let (state, line, problem) = match outcome.map(|outcome| &outcome.state) {
            Some(State::Applied(line)) => ("applied", Some(*line), None),
            Some(State::Present(line)) => ("present", Some(*line), None),
            Some(State::Drifted(drift)) => ("drifted", None, Some(drift.to_string())),
            None => ("not needed", None, None),
        };
        Placed { hook: hook.name.clone(), file: hook.file.clone(), state, line, problem }
    }

    fn is_applied(&self) -> bool {
        self.line.is_some()
    }
}

fn drifts(upstreams: &[Upstream], hooks: &[Hook], fits: &[Fit]) -> Result<Vec<Drifted>> {
    let mut drifts = Vec::new();
    for (upstream, fit) in upstreams.iter().zip(fits) {
        for (at, placed) in fit.hooks.iter().enumerate() {
            let Some(problem) = placed.problem.clone() else { continue };
            let version: Version = fit.version.parse()?;
            let takes = |other: &usize| fits[*other].hooks[at].is_applied();
            let taking: Vec<usize> = (0..fits.len()).filter(takes).collect();
            let age = |other: &usize| fits[*other].version.parse::<Version>();
            // The newest that is not newer; for a mimalloc older than all pins, the newest.
            let not_newer = taking.iter().filter(|other| age(other).is_ok_and(|age| age <= version)).copied().max();
            let last = not_newer.or_else(|| taking.last().copied());
            let excerpt = |from: &Upstream, version: Version| -> Result<Option<Excerpt>> {
                let source = from.tree()?.text(&placed.file);
                source.map_or(Ok(None), |source| hooks[at].excerpt(version, &source))
            };
            let was = match last {
                Some(last) => excerpt(&upstreams[last], age(&last)?)?,
                None => None,
            };
            drifts.push(Drifted {
                hook: placed.hook.clone(),
                file: placed.file.clone(),
                upstream: fit.upstream.clone(),
                problem,
                last: last.map(|last| fits[last].upstream.clone()),
                was,
                is: excerpt(upstream, version)?,
            });
        }
    }
    Ok(drifts)
}

impl Drifted {
    fn print(&self) {
        println!("\n{} does not fit {}: {}: {}", self.hook, self.upstream, self.file, self.problem);
        let title = |excerpt: &Option<Excerpt>, of: &str| match excerpt {
            Some(excerpt) => format!("{of}, {}:{}", self.file, excerpt.first),
            None => format!("{of}: nothing like it"),
        };
        let lines = |excerpt: &Option<Excerpt>| excerpt.as_ref().map_or(Vec::new(), Excerpt::marked);
        let last = self.last.as_deref().unwrap_or("no version");
        print!("{}", text::side_by_side(&[title(&self.was, last)], &[title(&self.is, &self.upstream)]));
        print!("{}", text::side_by_side(&lines(&self.was), &lines(&self.is)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::testing::Checkout;
    use crate::upstream::PRIMARY;

    #[test]
    fn a_drifted_hook_is_shown_with_the_function_as_it_was_and_is() {
        let checkout = Checkout::new("drift");
        checkout.edit("src/heap.c", |text| {
            text.replace("static bool mi_heap_page_collect(", "static bool mi_heap_page_gather(")
        });
        checkout.edit("src/page.c", |text| text.replace("_mi_page_free_collect(page,false);", "mi_page_gather(page);"));
        let upstreams = [Upstream::Pinned(PRIMARY), Upstream::Checkout(checkout.0.clone())];
        let report = Report::of(&upstreams, false, false).unwrap();

        assert_eq!(
            report.drifts.iter().map(|drift| &*drift.hook).collect::<Vec<_>>(),
            ["find-first-unpark", "heap-collect"]
        );
        let [pinned, drifted] = &report.upstreams[..] else { panic!("two were asked for") };
        assert!(matches!(pinned.off_proof, Check::Passed) && matches!(drifted.off_proof, Check::NotRun));
        assert!(pinned.cell("heap-collect").starts_with("applied ") && drifted.cell("heap-collect") == "drifted");
        assert!(pinned.inserted_lines > drifted.inserted_lines);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["upstreams"][1]["off_proof"]["result"], "not_run");
        assert_eq!(json["drifts"][0]["last"], PRIMARY);
        assert!(report.verdict().unwrap_err().to_string().starts_with("2 drifted hooks"));

        let [moved, renamed] = &report.drifts[..] else { panic!("two hooks drifted") };
        assert_eq!(moved.last.as_deref(), Some(PRIMARY));
        let (was, is) = (moved.was.as_ref().unwrap(), moved.is.as_ref().unwrap());
        assert!(was.lines[0].contains("mi_find_free_page") && was.lines[0] == is.lines[0]);
        assert!(was.anchors.len() == 1 && is.anchors.is_empty());
        assert!(renamed.is.as_ref().unwrap().lines[0].contains("mi_heap_page_gather"));
    }
}
