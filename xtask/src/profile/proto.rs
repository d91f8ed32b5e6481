//! `profile.proto`: the wire messages, and their translation into the model.

use super::{Location, Mapping, Profile, Sample, ValueType};
use anyhow::{bail, ensure, Context, Result};
use prost::Message;
use std::collections::HashMap;

/// The messages of google/pprof's `profile.proto`, reduced to the fields that are read here.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "7")]
        pub drop_frames: i64,
        #[prost(int64, tag = "8")]
        pub keep_frames: i64,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(uint64, tag = "4")]
        pub file_offset: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
    }
}

pub fn parse(bytes: &[u8]) -> Result<Profile> {
    let message = wire::Profile::decode(bytes).context("neither profile.proto nor heap_v2 text")?;
    ensure!(!message.sample_type.is_empty(), "neither profile.proto nor heap_v2 text (it has no sample types)");
    Reader::new(&message).read()
}

struct Reader<'a> {
    message: &'a wire::Profile,
    mappings: HashMap<u64, usize>,
    locations: HashMap<u64, usize>,
    functions: HashMap<u64, &'a wire::Function>,
}

impl<'a> Reader<'a> {
    fn new(message: &'a wire::Profile) -> Reader<'a> {
        Reader {
            message,
            mappings: index_by_id(message.mapping.iter().map(|mapping| mapping.id)),
            locations: index_by_id(message.location.iter().map(|location| location.id)),
            functions: message.function.iter().map(|function| (function.id, function)).collect(),
        }
    }

    fn read(&self) -> Result<Profile> {
        let message = self.message;
        Ok(Profile {
            sample_types: message.sample_type.iter().map(|value| self.value_type(value)).collect::<Result<_>>()?,
            default_type: self.string(message.default_sample_type)?,
            samples: message.sample.iter().map(|sample| self.sample(sample)).collect::<Result<_>>()?,
            locations: message.location.iter().map(|location| self.location(location)).collect::<Result<_>>()?,
            mappings: message.mapping.iter().map(|mapping| self.mapping(mapping)).collect::<Result<_>>()?,
            rate: message.period,
            time_nanos: message.time_nanos,
            duration_nanos: message.duration_nanos,
            comments: message.comment.iter().map(|&comment| self.string(comment)).collect::<Result<_>>()?,
            drop_frames: self.string(message.drop_frames)?,
            keep_frames: self.string(message.keep_frames)?,
        })
    }

    fn string(&self, index: i64) -> Result<String> {
        match usize::try_from(index).ok().and_then(|index| self.message.string_table.get(index)) {
            Some(string) => Ok(string.clone()),
            None if index == 0 => Ok(String::new()),
            None => bail!("string {index} is not in its table of {}", self.message.string_table.len()),
        }
    }

    fn value_type(&self, value: &wire::ValueType) -> Result<ValueType> {
        Ok(ValueType { name: self.string(value.r#type)?, unit: self.string(value.unit)? })
    }

    fn sample(&self, sample: &wire::Sample) -> Result<Sample> {
        let expected = self.message.sample_type.len();
        ensure!(
            sample.value.len() == expected,
            "a sample has {} values for {expected} sample types",
            sample.value.len()
        );
        let find = |id: &u64| {
            self.locations.get(id).copied().with_context(|| format!("a sample names location {id}, which is missing"))
        };
        Ok(Sample { stack: sample.location_id.iter().map(find).collect::<Result<_>>()?, values: sample.value.clone() })
    }

    fn location(&self, location: &wire::Location) -> Result<Location> {
        let mapping = match location.mapping_id {
            0 => None,
            id => Some(
                *self
                    .mappings
                    .get(&id)
                    .with_context(|| format!("location {} names mapping {id}, which is missing", location.id))?,
            ),
        };
        let functions = location.line.iter().map(|line| self.function(line.function_id)).collect::<Result<_>>()?;
        Ok(Location { address: location.address, mapping, functions })
    }

    fn function(&self, id: u64) -> Result<String> {
        let function =
            self.functions.get(&id).with_context(|| format!("a location names function {id}, which is missing"))?;
        let name = self.string(function.name)?;
        if name.is_empty() {
            self.string(function.system_name)
        } else {
            Ok(name)
        }
    }

    fn mapping(&self, mapping: &wire::Mapping) -> Result<Mapping> {
        Ok(Mapping {
            start: mapping.memory_start,
            limit: mapping.memory_limit,
            offset: mapping.file_offset,
            path: self.string(mapping.filename)?,
            build_id: self.string(mapping.build_id)?,
        })
    }
}

fn index_by_id(ids: impl Iterator<Item = u64>) -> HashMap<u64, usize> {
    ids.enumerate().map(|(index, id)| (id, index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Two samples, `parse` called by `main` and the synthetic `[other]`, with every field set.
    fn example() -> wire::Profile {
        let strings = [
            "",
            "alloc_objects",
            "count",
            "alloc_space",
            "bytes",
            "inuse_objects",
            "inuse_space",
            "/bin/app",
            "0123abcd",
            "[other]",
            "mi_.*",
            "rate 512",
            "space",
        ];
        let value_type = |r#type, unit| wire::ValueType { r#type, unit };
        wire::Profile {
            sample_type: vec![value_type(1, 2), value_type(3, 4), value_type(5, 2), value_type(6, 4)],
            sample: vec![
                wire::Sample { location_id: vec![7, 5], value: vec![0, 0, 3, 300] },
                wire::Sample { location_id: vec![9], value: vec![0, 0, 1, 50] },
            ],
            mapping: vec![wire::Mapping {
                id: 1,
                memory_start: 0x1000,
                memory_limit: 0x9000,
                file_offset: 0x200,
                filename: 7,
                build_id: 8,
            }],
            location: vec![
                wire::Location { id: 5, mapping_id: 1, address: 0x1111, line: vec![] },
                wire::Location { id: 7, mapping_id: 1, address: 0x2222, line: vec![] },
                wire::Location { id: 9, mapping_id: 0, address: 0, line: vec![wire::Line { function_id: 4 }] },
            ],
            function: vec![wire::Function { id: 4, name: 9, system_name: 9 }],
            string_table: strings.map(String::from).to_vec(),
            drop_frames: 10,
            keep_frames: 0,
            time_nanos: 1_000,
            duration_nanos: 2_000,
            period_type: Some(value_type(12, 4)),
            period: 512,
            comment: vec![11],
            default_sample_type: 6,
        }
    }

    fn check_example(profile: &Profile) {
        let names: Vec<_> = profile.sample_types.iter().map(|value| value.name.as_str()).collect();
        assert_eq!(names, ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
        assert_eq!(profile.default_type, "inuse_space");
        assert_eq!(profile.samples[0], Sample { stack: vec![1, 0], values: vec![0, 0, 3, 300] });
        assert_eq!(profile.samples[1], Sample { stack: vec![2], values: vec![0, 0, 1, 50] });
        assert_eq!(profile.locations[1], Location { address: 0x2222, mapping: Some(0), functions: vec![] });
        assert_eq!(profile.locations[2], Location { address: 0, mapping: None, functions: vec!["[other]".into()] });
        let mapping = Mapping {
            start: 0x1000,
            limit: 0x9000,
            offset: 0x200,
            path: "/bin/app".into(),
            build_id: "0123abcd".into(),
        };
        assert_eq!(profile.mappings, [mapping]);
        assert_eq!((profile.rate, profile.time_nanos, profile.duration_nanos), (512, 1_000, 2_000));
        assert_eq!((profile.drop_frames.as_str(), profile.keep_frames.as_str()), ("mi_.*", ""));
        assert_eq!(profile.comments, ["rate 512"]);
    }

    #[test]
    fn every_field_is_read_from_raw_bytes() {
        check_example(&Profile::parse(&example().encode_to_vec()).unwrap());
    }

    #[test]
    fn every_field_is_read_from_gzip() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&example().encode_to_vec()).unwrap();
        check_example(&Profile::parse(&gzip.finish().unwrap()).unwrap());
    }

    fn error_of(change: impl FnOnce(&mut wire::Profile)) -> String {
        let mut message = example();
        change(&mut message);
        parse(&message.encode_to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn broken_references_are_errors() {
        assert_eq!(
            error_of(|profile| profile.sample[0].location_id[0] = 77),
            "a sample names location 77, which is missing"
        );
        assert_eq!(
            error_of(|profile| profile.location[0].mapping_id = 3),
            "location 5 names mapping 3, which is missing"
        );
        assert_eq!(
            error_of(|profile| profile.location[2].line[0].function_id = 8),
            "a location names function 8, which is missing"
        );
        assert_eq!(error_of(|profile| profile.drop_frames = 99), "string 99 is not in its table of 13");
        assert_eq!(error_of(|profile| profile.sample[1].value.truncate(1)), "a sample has 1 values for 4 sample types");
    }

    #[test]
    fn other_bytes_are_no_profile() {
        assert!(parse(b"\xff\xfe not a profile").is_err());
        assert!(parse(b"").is_err());
    }
}
