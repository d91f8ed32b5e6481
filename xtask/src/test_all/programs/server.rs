//! Servers, which write a profile when they get a signal.

use super::{compare, disagree, folder, library};
use crate::demo;
use crate::profile::Profile;
use crate::test_all::report::Row;
use crate::test_all::steps::timed;
use crate::test_all::Context;
use anyhow::{bail, ensure, Context as _, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[cfg(not(unix))]
use std::net::TcpStream as Stream;
#[cfg(unix)]
use std::os::unix::net::UnixStream as Stream;

const PATIENCE: Duration = Duration::from_secs(30);

/// A server that runs with the profiler, in a folder for its files; killed at the end.
struct Server {
    process: Child,
    folder: PathBuf,
    socket: PathBuf,
}

impl Server {
    /// `SOCKET` among the arguments stands for the path of its socket, which must be short.
    fn start(context: &Context, program: &str, arguments: &[&str]) -> Result<Server> {
        let (library, folder) = (library(context)?, folder().join(program));
        let socket = std::env::temp_dir().join(format!("{program}-{}.socket", std::process::id()));
        context.shell.remove_path(&folder)?;
        context.shell.create_dir(&folder)?;
        let log = File::create(folder.join("log"))?;
        let clean = demo::clean_command(program.as_ref());
        let mut command = demo::preload(clean, &library, &folder.join("exit.pb.gz"));
        command.env("MIMALLOC_PROF_DUMP_SIGNAL", "USR2").env("MIMALLOC_PROF_DUMP", folder.join("%p.%n.pb.gz"));
        let socket_text = socket.display().to_string();
        command.args(arguments.iter().map(|word| word.replace("SOCKET", &socket_text))).current_dir(&folder);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().with_context(|| program.to_string())?;
        let server = Server { process, folder, socket };
        server.wait("it does not listen", || Ok(server.connect().ok()))?;
        Ok(server)
    }

    #[cfg(unix)]
    fn connect(&self) -> Result<BufReader<Stream>> {
        let stream = Stream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(BufReader::new(stream))
    }

    #[cfg(not(unix))]
    fn connect(&self) -> Result<BufReader<Stream>> {
        bail!("{}: this system has no such sockets", self.socket.display())
    }

    fn wait<T>(&self, what: &str, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = ready()? {
                return Ok(found);
            }
            let log = self.folder.join("log");
            ensure!(start.elapsed() < PATIENCE, "{what}: {}", std::fs::read_to_string(log)?);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The profile number `n` of a process, for which it gets the signal. `nudge` makes it allocate.
    fn profile(&self, pid: u32, n: usize, mut nudge: impl FnMut() -> Result<()>) -> Result<Profile> {
        let file = self.folder.join(format!("{pid}.{n}.pb.gz"));
        signal("USR2", pid)?;
        self.wait(&format!("{}: no profile after the signal", file.display()), || {
            nudge()?;
            Ok(file.is_file().then_some(()))
        })?;
        Profile::read(&file)
    }

    /// The profiles that are there, with what is in them.
    fn profiles(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut profiles = BTreeMap::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".pb.gz") {
                profiles.insert(name, std::fs::read(&path)?);
            }
        }
        Ok(profiles)
    }

    fn ended(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.process.try_wait()?.is_none() {
            ensure!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn signal(name: &str, pid: u32) -> Result<()> {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status()?;
    ensure!(status.success(), "cannot send {name} to {pid}");
    Ok(())
}

// --- redis ---

/// Asks redis, and returns its answer, which has one line or says how long it is.
fn ask_redis(redis: &mut BufReader<Stream>, command: &str) -> Result<String> {
    redis.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    redis.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(length) = line.strip_prefix('$') else {
        ensure!(line.starts_with(['+', ':']), "{command}: {line}");
        return Ok(line[1..].to_string());
    };
    let mut text = vec![0; length.parse::<usize>()? + 2];
    redis.read_exact(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// The number in a line `NAME:NUMBER` of `INFO`.
fn redis_info(redis: &mut BufReader<Stream>, name: &str) -> Result<i64> {
    let info = ask_redis(redis, "INFO")?;
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.parse().ok()).with_context(|| format!("INFO has no {name}:\n{info}"))
}

/// `used_memory` sums up blocks as large as the allocator made them: these values fill theirs (of 5120 bytes).
pub fn redis(context: &Context, row: &mut Row) -> Result<()> {
    let options = ["--port", "0", "--unixsocket", "SOCKET", "--save", "", "--enable-debug-command", "yes"];
    let mut server = Server::start(context, "redis-server", &options)?;
    let (pid, mut redis) = (server.process.id(), server.connect()?);
    let mut ask = |command: &str| ask_redis(&mut redis, command);
    let before = server.profile(pid, 1, || ask("PING").map(drop))?;
    ask("DEBUG POPULATE 20000 key 5114")?;
    let after = server.profile(pid, 2, || ask("PING").map(drop))?;
    let used = redis_info(&mut redis, "used_memory")?;
    row.tests.push(timed("estimate", context, || compare(context, used, &after)));
    row.tests.push(timed("planted", context, || disagree(used, &before)));
    row.tests.push(timed("BGSAVE", context, || background_save(context, &server, &mut redis)));
    row.tests.push(timed("at exit", context, || {
        let _ = ask_redis(&mut redis, "SHUTDOWN NOSAVE");
        server.ended()?;
        let profile = Profile::read(&server.folder.join("exit.pb.gz"))?;
        compare(context, used, &profile)
    }));
    Ok(())
}

/// The child that saves gets the signal too: it writes a file of its own, and leaves its parent's as they are.
fn background_save(context: &Context, server: &Server, redis: &mut BufReader<Stream>) -> Result<usize> {
    let pid = server.process.id();
    let before = server.profiles()?;
    ask_redis(redis, "CONFIG SET rdb-key-save-delay 50")?;
    ask_redis(redis, "BGSAVE")?;
    let children = format!("/proc/{pid}/task/{pid}/children");
    let child = server
        .wait("no child", || Ok(std::fs::read_to_string(&children)?.split_whitespace().next().map(str::to_string)))?;
    let child: u32 = child.parse()?;
    let profile = server.profile(child, 1, || Ok(()))?;
    ask_redis(redis, "CONFIG SET rdb-key-save-delay 0")?;
    server.wait("BGSAVE does not end", || Ok((redis_info(redis, "rdb_bgsave_in_progress")? == 0).then_some(())))?;
    ensure!(server.folder.join("dump.rdb").is_file(), "BGSAVE saved nothing");
    let used = redis_info(redis, "used_memory")?;
    compare(context, used, &profile)?;
    let after = server.profiles()?;
    let own = format!("{child}.");
    for (name, bytes) in &after {
        ensure!(name.starts_with(&own) || before.get(name) == Some(bytes), "the child wrote {name}");
    }
    ensure!(after.len() == before.len() + 1, "{} profiles became {}", before.len(), after.len());
    Ok(3)
}

// --- memcached ---

fn ask_memcached(memcached: &mut BufReader<Stream>, command: &str) -> Result<String> {
    memcached.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = String::new();
    loop {
        let start = answer.len();
        ensure!(memcached.read_line(&mut answer)? > 0, "{command}: no answer");
        match answer[start..].trim_end() {
            "END" | "STORED" | "OK" => return Ok(answer),
            line if line.contains("ERROR") => bail!("{command}: {line}"),
            _ => {}
        }
    }
}

fn memcached_stat(memcached: &mut BufReader<Stream>, command: &str, name: &str) -> Result<i64> {
    let answer = ask_memcached(memcached, command)?;
    let value = answer.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).with_context(|| format!("{command} has no {name}:\n{answer}"))
}

/// It counts the slabs that it takes from `malloc`, and its hash table.
pub fn memcached(context: &Context, row: &mut Row) -> Result<()> {
    let server = Server::start(context, "memcached", &["-s", "SOCKET", "-m", "256", "-t", "1", "-u", "root"])?;
    let (pid, mut memcached) = (server.process.id(), server.connect()?);
    let mut nudged = 0;
    // A connection takes memory.
    let mut nudge = || {
        nudged += 1;
        server
            .connect()
            .and_then(|mut other| ask_memcached(&mut other, &format!("set nudge{nudged} 0 0 1\r\nx")))
            .map(drop)
    };
    let before = server.profile(pid, 1, &mut nudge)?;
    let value = "x".repeat(1000);
    for key in 0..100_000 {
        ask_memcached(&mut memcached, &format!("set key{key} 0 0 {}\r\n{value}", value.len()))?;
    }
    let after = server.profile(pid, 2, &mut nudge)?;
    let slabs = memcached_stat(&mut memcached, "stats slabs", "total_malloced")?;
    let held = slabs + memcached_stat(&mut memcached, "stats", "hash_bytes")?;
    row.tests.push(timed("estimate", context, || compare(context, held, &after)));
    row.tests.push(timed("planted", context, || disagree(held, &before)));
    Ok(())
}
