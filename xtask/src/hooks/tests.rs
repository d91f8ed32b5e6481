use super::*;
use crate::materialize;
use crate::upstream::{pins, Upstream};

const BASE: Version = Version(2, 5, 2);

/// Applies `toml` to one file that holds `source`.
fn apply_to(file: &str, source: &str, toml: &str, version: Version) -> Applied {
    apply(&parse(toml).unwrap(), version, |name| (name == file).then(|| source.to_string())).unwrap()
}

fn hooked(file: &str, source: &str, toml: &str) -> String {
    let applied = apply_to(file, source, toml, BASE);
    applied.ensure_complete(file).unwrap();
    applied.files[file].clone()
}

fn drift(source: &str, toml: &str) -> String {
    let applied = apply_to("a.c", source, toml, BASE);
    assert!(applied.files.is_empty(), "a drifted file has no new text");
    applied.ensure_complete("a.c").unwrap_err().to_string()
}

fn pristine(file: &str, source: &str) -> String {
    text::join(&region::drop_regions(source, Syntax::of(file).unwrap()).unwrap().lines)
}

fn hook(rest: &str) -> String {
    format!("[[hook]]\nname = 'h'\nfile = 'a.c'\nwhy = 'test'\n{rest}\n")
}

const TWO_FUNCTIONS: &str = "\
void f(void) {
  track(p);
  done();
}

void g(void) {
  track(p);
  if (x) {
    track(q);
  }
}
";

#[test]
fn an_anchor_is_found_in_its_function_only() {
    let toml = hook("scope = 'f'\nanchor = 'track(p)'\nplace = 'after'\ncode = 'prof(p);'");
    let text = hooked("a.c", TWO_FUNCTIONS, &toml);
    let expected = TWO_FUNCTIONS.replacen("  track(p);\n", "  track(p);\n  #if MI_PPROF\n  prof(p);\n  #endif\n", 1);
    assert_eq!(text, expected);
}

#[test]
fn code_takes_the_indent_of_the_block_it_lands_in() {
    let opening = hook("scope = 'g'\nanchor = 'if (x)'\nplace = 'after'\ncode = \"one();\\n  two();\"");
    let text = hooked("a.c", TWO_FUNCTIONS, &opening);
    assert!(
        text.contains("  if (x) {\n    #if MI_PPROF\n    one();\n      two();\n    #endif\n    track(q);"),
        "{text}"
    );
    let signature = hook("scope = 'g'\nanchor = 'void g'\nplace = 'after'\ncode = 'one();'");
    assert!(hooked("a.c", TWO_FUNCTIONS, &signature).contains("void g(void) {\n  #if MI_PPROF\n  one();"));
}

#[test]
fn no_match_names_the_nearest_lines() {
    let error = drift(TWO_FUNCTIONS, &hook("scope = 'g'\nanchor = 'trakc(q);'\nplace = 'after'\ncode = 'x();'"));
    assert!(error.contains("expected once, found none") && error.contains("nearest: a.c:9: track(q);"), "{error}");
}

#[test]
fn two_matches_are_an_error_that_shows_both() {
    let error = drift(TWO_FUNCTIONS, &hook("anchor = 'track(p)'\nplace = 'after'\ncode = 'x();'"));
    assert!(error.contains("found 2 times") && error.contains("a.c:2:") && error.contains("a.c:7:"), "{error}");
}

#[test]
fn a_missing_function_names_similar_ones_and_where_the_anchor_is() {
    let source = TWO_FUNCTIONS.replace("void f(", "void mi_page_collect(");
    let error = drift(&source, &hook("scope = '_mi_page_collect'\nanchor = 'done();'\nplace = 'after'\ncode = 'x();'"));
    assert!(error.contains("no such definition"), "{error}");
    assert!(error.contains("a.c:1: void mi_page_collect") && error.contains("a.c:3: done();"), "{error}");
}

#[test]
fn a_missing_file_is_a_drift() {
    let applied = apply_to("b.c", "", &hook("anchor = 'x'\nplace = 'after'\ncode = 'x();'"), BASE);
    assert!(applied.ensure_complete("b.c").unwrap_err().to_string().contains("no such file"));
}

#[test]
fn the_nth_of_a_stated_number_of_matches() {
    let toml = hook("anchor = 'track(p)'\nnth = 2\nof = 2\nplace = 'before'\ncode = 'x();'");
    assert!(
        hooked("a.c", TWO_FUNCTIONS, &toml).contains("void g(void) {\n  #if MI_PPROF\n  x();\n  #endif\n  track(p);")
    );
    let error = drift(TWO_FUNCTIONS, &hook("anchor = 'track('\nnth = 2\nof = 2\nplace = 'before'\ncode = 'x();'"));
    assert!(error.contains("expected 2 times, found 3 times"), "{error}");
}

#[test]
fn a_static_defined_twice_needs_an_anchor_that_tells_them_apart() {
    let source = "#if A\nstatic int f(void) {\n  a();\n  same();\n}\n#else\nstatic int f(void) {\n  b();\n  same();\n}\n#endif\n";
    let at = |anchor: &str| hook(&format!("scope = 'f'\nanchor = '{anchor}'\nplace = 'after'\ncode = 'x();'"));
    assert!(hooked("a.c", source, &at("b();")).contains("  b();\n  #if MI_PPROF\n"));
    assert!(drift(source, &at("same();")).contains("found 2 times"));
}

#[test]
fn replaced_lines_live_on_in_the_else_branch() {
    let toml = hook("scope = 'g'\nanchor = 'if (x) {'\nlines = 3\nplace = 'replace'\ncode = 'x();'");
    let text = hooked("a.c", TWO_FUNCTIONS, &toml);
    assert!(text.contains("  #if MI_PPROF\n  x();\n  #else\n  if (x) {\n    track(q);\n  }\n  #endif\n"), "{text}");
    assert_eq!(pristine("a.c", &text), TWO_FUNCTIONS);
}

#[test]
fn alternatives_by_version() {
    let toml = hook("scope = 'g'\nanchor = 'track(q)'\nplace = 'after'\ncode = 'new();'\nalt = [{ versions = '<2.5.0', why = 'test', anchor = 'track(p)', code = 'old();' }]");
    let at = |version| apply_to("a.c", TWO_FUNCTIONS, &toml, version).files["a.c"].clone();
    assert!(at(Version(2, 5, 0)).contains("    track(q);\n    #if MI_PPROF\n    new();"));
    assert!(at(Version(2, 3, 2)).contains("  track(p);\n  #if MI_PPROF\n  old();"));
    let only_new = hook("versions = '>=2.5.1'\nscope = 'g'\nanchor = 'track(q)'\nplace = 'after'\ncode = 'x();'");
    assert!(apply_to("a.c", TWO_FUNCTIONS, &only_new, Version(2, 5, 0)).files.is_empty());
}

#[test]
fn hooks_on_one_line_apply_in_list_order() {
    let toml = "
        [[hook]]\nname = '1'\nfile = 'a.c'\nwhy = 't'\nscope = 'f'\nanchor = 'done'\nplace = 'before'\ncode = 'first();'
        [[hook]]\nname = '2'\nfile = 'a.c'\nwhy = 't'\nscope = 'f'\nanchor = 'done'\nplace = 'before'\ncode = 'second();'
        [[hook]]\nname = '3'\nfile = 'a.c'\nwhy = 't'\nscope = 'f'\nanchor = 'done'\nplace = 'replace'\ncode = 'third();'
        [[hook]]\nname = '4'\nfile = 'a.c'\nwhy = 't'\nscope = 'f'\nanchor = 'track'\nplace = 'after'\ncode = 'zeroth();'";
    let text = hooked("a.c", TWO_FUNCTIONS, toml);
    let at = |call: &str| text.find(call).unwrap();
    assert!(at("zeroth()") < at("first()") && at("first()") < at("second()") && at("second()") < at("third()"));
    assert_eq!(pristine("a.c", &text), TWO_FUNCTIONS);
}

#[test]
fn overlapping_replacements_are_refused() {
    let toml = "
        [[hook]]\nname = '1'\nfile = 'a.c'\nwhy = 't'\nscope = 'g'\nanchor = 'if (x)'\nlines = 3\nplace = 'replace'\ncode = 'a();'
        [[hook]]\nname = '2'\nfile = 'a.c'\nwhy = 't'\nscope = 'g'\nanchor = 'track(q)'\nplace = 'after'\ncode = 'b();'";
    let result = apply(&parse(toml).unwrap(), BASE, |_| Some(TWO_FUNCTIONS.to_string()));
    assert!(format!("{:#}", result.err().unwrap()).contains("'1' and '2' overlap"));
}

#[test]
fn every_end_of_line_survives() {
    let after = hook("anchor = 'last'\nplace = 'after'\ncode = 'x();'");
    let replace = hook("anchor = 'last'\nplace = 'replace'\ncode = 'x();'");
    for source in ["one\r\nlast\r\n", "one\r\nlast", "one\nlast", "last", "one\nlast\r\nmixed\n"] {
        for toml in [&after, &replace] {
            let text = hooked("a.c", source, toml);
            assert_eq!(pristine("a.c", &text), source);
            assert_eq!(text.ends_with('\n'), source.ends_with('\n'));
        }
    }
    let text = hooked("a.c", "one\r\nlast\r\n", &after);
    assert_eq!(text, "one\r\nlast\r\n#if MI_PPROF\r\nx();\r\n#endif\r\n");
}

#[test]
fn cmake_files_get_marker_comments() {
    let toml =
        "[[hook]]\nname = 'h'\nfile = 'CMakeLists.txt'\nwhy = 't'\nanchor = 'b()'\nplace = 'replace'\ncode = 'c()'";
    let text = hooked("CMakeLists.txt", "a()\n  b()\n", toml);
    assert_eq!(text, "a()\n  # mi_prof begin\n# mi_prof was:   b()\n  c()\n  # mi_prof end\n");
    assert_eq!(pristine("CMakeLists.txt", &text), "a()\n  b()\n");
}

#[test]
fn a_second_run_changes_nothing_and_says_so() {
    let toml = hook("scope = 'f'\nanchor = 'track(p)'\nplace = 'after'\ncode = 'prof(p);'");
    let once = hooked("a.c", TWO_FUNCTIONS, &toml);
    let again = apply_to("a.c", &once, &toml, BASE);
    assert_eq!(again.files["a.c"], once);
    assert!(matches!(again.outcomes[0].state, State::Present(3)));
}

#[test]
fn the_text_of_an_older_hook_is_replaced() {
    let old = hook("scope = 'f'\nanchor = 'track(p)'\nplace = 'after'\ncode = 'old(p);'");
    let new = hook("scope = 'f'\nanchor = 'done'\nplace = 'after'\ncode = 'new(p);'");
    let text = hooked("a.c", &hooked("a.c", TWO_FUNCTIONS, &old), &new);
    assert_eq!(text, hooked("a.c", TWO_FUNCTIONS, &new));
}

#[test]
fn candidates_are_numbered_as_the_file_stands() {
    let first = hook("scope = 'f'\nanchor = 'track(p)'\nplace = 'after'\ncode = 'prof(p);'");
    let source = hooked("a.c", TWO_FUNCTIONS, &first);
    let error = drift(&source, &hook("anchor = 'track(p)'\nplace = 'after'\ncode = 'x();'"));
    assert!(error.contains("a.c:2:") && error.contains("a.c:10:"), "{error}");
}

#[test]
fn malformed_hooks_are_refused() {
    for bad in [
        "anchor = ''\nplace = 'after'\ncode = 'x();'",
        "anchor = 'a'\nplace = 'after'",
        "anchor = 'a'\nplace = 'beside'\ncode = 'x();'",
        "anchor = 'a'\nplace = 'after'\ncode = 'x();'\nguard = 'OTHER'",
        "anchor = 'a'\nplace = 'after'\ncode = 'x();'\nnth = 3\nof = 2",
        "anchor = 'a'\nplace = 'after'\ncode = 'x();'\nunknown = 1",
    ] {
        assert!(parse(&hook(bad)).is_err(), "{bad}");
    }
    let twice = hook("anchor = 'a'\nplace = 'after'\ncode = 'x();'").repeat(2);
    assert!(parse(&twice).is_err());
}

#[test]
fn dropping_regions_restores_every_pinned_tree() {
    for pin in pins() {
        let upstream = Upstream::Pinned(pin).tree().unwrap();
        let mut tree = materialize::compose(&Upstream::Pinned(pin)).unwrap();
        assert!(tree != upstream);
        assert!(materialize::drop_all_regions(&mut tree).unwrap(), "nothing was hooked in {pin}");
        tree.files.retain(|path, _| upstream.files.contains_key(path));
        assert!(tree == upstream, "mimalloc {pin} does not come back");
    }
}
