//! mimalloc's versions and the ranges of them that a hook is meant for.

use anyhow::{bail, Context, Result};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

/// A list of versions, or comparisons that must all hold: `"<2.5.0"`, `">=2.5.0, <2.5.2"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Versions {
    AnyOf(Vec<String>),
    AllOf(String),
}

impl Version {
    /// `#define MI_MALLOC_VERSION 20502`; lines up to 2.1.x used one digit for the minor version.
    pub fn of_header(mimalloc_h: &str) -> Result<Version> {
        let number: u32 = mimalloc_h
            .lines()
            .find_map(|line| line.trim().strip_prefix("#define MI_MALLOC_VERSION")?.split_whitespace().next())
            .and_then(|word| word.parse().ok())
            .context("include/mimalloc.h defines no MI_MALLOC_VERSION: not a mimalloc tree?")?;
        Ok(match number {
            0..=9999 => Version(number / 100, number / 10 % 10, number % 10),
            _ => Version(number / 10000, number / 100 % 100, number % 100),
        })
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Version> {
        let numbers: Vec<u32> = text.split('.').map_while(|part| part.parse().ok()).collect();
        match numbers[..] {
            [major, minor, patch] if text.split('.').count() == 3 => Ok(Version(major, minor, patch)),
            _ => bail!("'{text}' is not a version such as 2.5.2"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Versions {
    pub fn contain(&self, version: Version) -> Result<bool> {
        match self {
            Versions::AnyOf(list) => any(list.iter().map(String::as_str), |item| Ok(version == item.parse()?)),
            Versions::AllOf(text) => Ok(!any(text.split(','), |item| Ok(!compares(version, item.trim())?))?),
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Versions::AnyOf(list) => f.write_str(&list.join(", ")),
            Versions::AllOf(text) => f.write_str(text),
        }
    }
}

fn any<'a>(items: impl Iterator<Item = &'a str>, holds: impl Fn(&str) -> Result<bool>) -> Result<bool> {
    for item in items {
        if holds(item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn compares(version: Version, comparison: &str) -> Result<bool> {
    let (operator, bound) = comparison.split_at(comparison.find(|c: char| c.is_ascii_digit()).unwrap_or(0));
    let bound = bound.parse()?;
    Ok(match operator.trim() {
        "<" => version < bound,
        "<=" => version <= bound,
        ">" => version > bound,
        ">=" => version >= bound,
        "=" | "" => version == bound,
        other => bail!("'{other}' is not a comparison (use < <= > >= =)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contained(text: &str, version: Version) -> bool {
        Versions::AllOf(text.into()).contain(version).unwrap()
    }

    #[test]
    fn header_numbers_are_read() {
        let header = |number: &str| format!("#pragma once\n#define MI_MALLOC_VERSION {number}  // major + 2 digits\n");
        assert_eq!(Version::of_header(&header("20502")).unwrap(), Version(2, 5, 2));
        assert_eq!(Version::of_header(&header("216")).unwrap(), Version(2, 1, 6));
        assert!(Version::of_header("int x;").is_err());
    }

    #[test]
    fn ranges_and_lists() {
        assert!(contained("<2.5.0", Version(2, 3, 2)));
        assert!(!contained("<2.5.0", Version(2, 5, 0)));
        assert!(contained(">=2.5.0, <2.5.2", Version(2, 5, 1)));
        assert!(!contained(">=2.5.0, <2.5.2", Version(2, 5, 2)));
        let list = Versions::AnyOf(vec!["2.3.2".into(), "2.5.1".into()]);
        assert!(list.contain(Version(2, 5, 1)).unwrap());
        assert!(!list.contain(Version(2, 5, 0)).unwrap());
        assert!(Versions::AllOf("~2.5".into()).contain(Version(2, 5, 0)).is_err());
    }
}
