//! Records of a source, as `adit add` and `adit peer` change them with `--source`: one record at a time, and only if it
//! is still what it was.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use adit_ctl::config::{self, Term};
use adit_ctl::text::printable_json;
use adit_fleet::{
    EtcdAddress, EtcdRefusal, EtcdValue, MAX_RECORD, PAGE, PeerRecord, RecordChange, RecordId,
    RecordList, delete_request, etcd_page, is_changed, put_request, range_request,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::dir::id_of;
use super::etcd_client::EtcdClient;
use super::folder::{explain, read_file};
use crate::cli::{self, AddArgs, AgentSource, OutputArgs, PeerArgs, RecordSourceArgs};
use crate::failure::{Context, Failure, Result, bail, say};

/// Where records are.
enum RecordStore {
    Folder(PathBuf),
    Etcd(EtcdAddress, Box<EtcdClient>),
}

/// A record, as the source has it.
struct StoredRecord {
    id: RecordId,
    text: Zeroizing<Vec<u8>>,
    /// What it says, or what is wrong with it.
    record: std::result::Result<PeerRecord, String>,
}

/// What a command did, as JSON.
#[derive(Serialize)]
struct RecordDone<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    source: String,
    record: &'a str,
    public_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

/// What is to be of a record.
pub(crate) enum RecordEdit<'a> {
    Name(&'a str),
    Term(Term, Option<String>),
    Remove,
}

/// Changes a record, if there is a source.
pub(crate) fn edit_record(
    args: &PeerArgs,
    edit: &RecordEdit<'_>,
    (done, what): (&str, &str),
) -> Result<bool> {
    let Some((source, store)) = open(&args.source)? else {
        return Ok(false);
    };
    let all = store.all().map_err(|why| cannot_read(source, &why))?;
    let found = find(&all, &args.of.peer, source)?;
    let key = match &found.record {
        Ok(record) => record.public_key,
        Err(why) => bail!(
            State,
            "the record {} of {source} is wrong, and has to be mended first: {why}",
            found.id
        ),
    };
    let new = match (&store, edit) {
        (_, RecordEdit::Remove) => None,
        (RecordStore::Folder(_), _) => {
            let text = std::str::from_utf8(&found.text).unwrap_or_default();
            let new = match edit {
                RecordEdit::Term(term, value) => {
                    config::with_term(text, key, *term, value.as_deref())
                }
                RecordEdit::Name(name) => config::rename(text, key, name),
                RecordEdit::Remove => None,
            };
            let Some(new) = new else {
                bail!(Mistake, "the record {} cannot say that", found.id);
            };
            Some(Zeroizing::new(new.as_bytes().to_vec()))
        }
        (RecordStore::Etcd(..), _) => {
            let fields = serde_json::from_slice::<Value>(&found.text);
            let mut fields = fields.context(|| format!("cannot read the record {}", found.id))?;
            let (field, value) = match edit {
                RecordEdit::Name(name) => ("name", Some((*name).to_owned())),
                RecordEdit::Term(Term::Limit, value) => ("limit", value.clone()),
                RecordEdit::Term(Term::Quota, value) => ("quota", value.clone()),
                RecordEdit::Term(Term::Expires, value) => ("expires", value.clone()),
                RecordEdit::Remove => ("", None),
            };
            if let Some(object) = fields.as_object_mut() {
                match value {
                    Some(value) => drop(object.insert(field.to_owned(), value.into())),
                    None => drop(object.remove(field)),
                }
            }
            Some(Zeroizing::new(fields.to_string().into_bytes()))
        }
    };
    if let Some(new) = &new {
        store.check(&all, &found.id, new, source)?;
    }
    store.change(
        &found.id,
        Some(&found.text),
        new.as_deref().map(Vec::as_slice),
        source,
    )?;
    let name = found.record.as_ref().ok().and_then(|it| it.name.as_deref());
    let label = name.map_or_else(|| found.id.to_string(), str::to_owned);
    let interface = &args.of.conf.conf;
    if args.output.json {
        let new_name = match edit {
            RecordEdit::Name(new) => Some(*new),
            _ => name,
        };
        return print_json(&RecordDone {
            schema: 1,
            interface,
            done,
            source: source.to_string(),
            record: &found.id,
            public_key: key.to_string(),
            name: new_name,
        });
    }
    tell(
        args.output,
        interface,
        &format!("{label} {what}, in its record {}", found.id),
    );
    Ok(true)
}

/// Makes a record, if there is a source.
pub(crate) fn add_record(args: &AddArgs) -> Result<bool> {
    let Some((source, store)) = open(&args.source)? else {
        return Ok(false);
    };
    if args.allowed_ips.is_empty() {
        bail!(
            Mistake,
            "a record needs --allowed-ips: the peer's addresses, such as 10.0.0.2/32"
        );
    }
    let key = args.peer.to_string();
    let (id, text) = match &store {
        RecordStore::Folder(_) => {
            let name = args.name.as_deref().filter(|name| is_file_name(name));
            let of_key = || key.replace('/', "_").replace('+', "-").replace('=', "");
            let id = format!("{}.conf", name.map_or_else(of_key, str::to_owned));
            let mut text = format!("[Peer]\nPublicKey = {key}\n");
            if let Some(name) = &args.name {
                text += &format!("# friendly_name = {name}\n");
            }
            let blocks: Vec<String> = args.allowed_ips.iter().map(ToString::to_string).collect();
            text += &format!("AllowedIPs = {}\n", blocks.join(", "));
            if let Some(endpoint) = &args.endpoint {
                text += &format!("Endpoint = {endpoint}\n");
            }
            if let Some(seconds) = args.persistent_keepalive {
                text += &format!("PersistentKeepalive = {seconds}\n");
            }
            (id, text)
        }
        // By its key: so --just-in-time finds it.
        RecordStore::Etcd(..) => {
            let blocks: Vec<String> = args.allowed_ips.iter().map(ToString::to_string).collect();
            let mut fields = json!({ "public_key": key, "allowed_ips": blocks });
            for (field, value) in [
                ("name", args.name.clone().map(Value::from)),
                (
                    "endpoint",
                    args.endpoint.as_ref().map(|it| it.to_string().into()),
                ),
                (
                    "persistent_keepalive",
                    args.persistent_keepalive.map(Value::from),
                ),
            ] {
                if let Some(value) = value {
                    fields[field] = value;
                }
            }
            (key.clone(), fields.to_string())
        }
    };
    let id = RecordId::from(id);
    let all = store.all().map_err(|why| cannot_read(source, &why))?;
    if all.iter().any(|it| it.id == id) {
        bail!(State, "{source} has a record {id} already");
    }
    let record = store.check(&all, &id, text.as_bytes(), source)?;
    if record.name != args.name {
        bail!(
            Mistake,
            "{:?} cannot be a name: it would be read as {}",
            args.name.as_deref().unwrap_or_default(),
            record
                .name
                .map_or("none".into(), |other| format!("{other:?}"))
        );
    }
    store.change(&id, None, Some(text.as_bytes()), source)?;
    let interface = &args.conf.conf;
    if args.said.json {
        return print_json(&RecordDone {
            schema: 1,
            interface,
            done: "added",
            source: source.to_string(),
            record: &id,
            public_key: key,
            name: args.name.as_deref(),
        });
    }
    let label = args.name.as_deref().unwrap_or(&key);
    tell(args.said, interface, &format!("{label} has a record, {id}"));
    Ok(true)
}

fn print_json(done: &RecordDone<'_>) -> Result<bool> {
    let text = serde_json::to_string(done).context(|| "cannot write JSON".into())?;
    let text = printable_json(&text).into_owned() + "\n";
    cli::print(text.as_bytes()).map(|()| true)
}

fn tell(output: OutputArgs, interface: &str, text: &str) {
    if !output.quiet {
        say!(
            "adit: {interface}: {text}: `adit agent status {interface}` says what its agent makes of it"
        );
    }
}

fn open(args: &RecordSourceArgs) -> Result<Option<(&AgentSource, RecordStore)>> {
    let Some(source) = &args.source else {
        return Ok(None);
    };
    let store = match source {
        AgentSource::Dir(path) => RecordStore::Folder(path.clone()),
        AgentSource::Etcd(address) => {
            let client = EtcdClient::new(&args.tls, address)?;
            RecordStore::Etcd(address.clone(), Box::new(client))
        }
        AgentSource::Exec(_) => bail!(
            Mistake,
            "the records of {source} are its program's: change them there; --source takes dir: and etcd:"
        ),
    };
    Ok(Some((source, store)))
}

fn cannot_read(source: &AgentSource, why: &str) -> Failure {
    Failure::State(format!("cannot read {source}: {why}"))
}

fn is_file_name(name: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "_-@".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(is_good)
}

/// The record of a peer: by what the source calls it, by its name, by its public key or the beginning of it.
fn find<'a>(all: &'a [StoredRecord], word: &str, source: &AgentSource) -> Result<&'a StoredRecord> {
    let by = |is_it: &dyn Fn(&StoredRecord) -> bool| {
        let mut found = all.iter().filter(|it| is_it(it));
        let first = found.next();
        first.map(|it| (it, found.next()))
    };
    fn record(it: &StoredRecord) -> Option<&PeerRecord> {
        it.record.as_ref().ok()
    }
    let is_id = |it: &StoredRecord| *it.id == *word || it.id.strip_suffix(".conf") == Some(word);
    let is_name = |it: &StoredRecord| record(it).is_some_and(|it| it.name.as_deref() == Some(word));
    let is_key = |it: &StoredRecord| {
        record(it).is_some_and(|it| word.len() >= 4 && it.public_key.to_string().starts_with(word))
    };
    let ways: [&dyn Fn(&StoredRecord) -> bool; 3] = [&is_name, &is_key, &is_id];
    match ways.iter().find_map(|is_it| by(is_it)) {
        Some((found, None)) => Ok(found),
        Some((one, Some(other))) => bail!(
            Mistake,
            "{word} is said of the records {} and {} of {source}: say which by its whole public key",
            one.id,
            other.id
        ),
        None => bail!(
            Mistake,
            "{source} has no record of a peer {word}: name it by its name, its public key, or the record's name"
        ),
    }
}

impl RecordStore {
    fn all(&self) -> std::result::Result<Vec<StoredRecord>, String> {
        match self {
            Self::Folder(path) => {
                let entries = fs::read_dir(path).map_err(|error| explain(&error))?;
                let mut all = Vec::new();
                for entry in entries {
                    let entry = entry.map_err(|error| explain(&error))?;
                    let Some(id) = id_of(&entry.file_name()) else {
                        continue;
                    };
                    let text = match read_file(&entry.path(), MAX_RECORD) {
                        Ok(text) => text,
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => return Err(format!("{id}: {}", explain(&error))),
                    };
                    let record = PeerRecord::from_section(&text);
                    all.push(StoredRecord { id, text, record });
                }
                Ok(all)
            }
            Self::Etcd(address, client) => {
                let ask = |path: &str, asked: &Value| client.ask_any(address, path, asked);
                let mut all = Vec::new();
                let mut behind: Option<(Vec<u8>, i64)> = None;
                loop {
                    let after = behind.as_ref().map(|(key, at)| (key.as_slice(), *at));
                    let asked = range_request(&address.prefix, after, PAGE, true);
                    let answer = ask("kv/range", &asked).map_err(told)?;
                    let page = etcd_page(&answer, true).map_err(told)?;
                    let revision = after.map_or(page.revision, |(_, at)| at);
                    let last = page.pairs.last().map(|(key, _)| key.clone());
                    for (key, value) in page.pairs {
                        let name = key.strip_prefix(address.prefix.as_bytes());
                        let name = name.and_then(|name| std::str::from_utf8(name).ok());
                        let (Some(name), EtcdValue::Bytes(text)) = (name, value) else {
                            continue;
                        };
                        let record = PeerRecord::from_json(&text);
                        all.push(StoredRecord {
                            id: name.into(),
                            text: Zeroizing::new(text),
                            record,
                        });
                    }
                    match last {
                        Some(last) if page.has_more => behind = Some((last, revision)),
                        _ => return Ok(all),
                    }
                }
            }
        }
    }

    /// What the text says, if an agent would take it beside the other records.
    fn check(
        &self,
        all: &[StoredRecord],
        id: &RecordId,
        text: &[u8],
        source: &AgentSource,
    ) -> Result<PeerRecord> {
        let record = match self {
            Self::Folder(_) => PeerRecord::from_section(text),
            Self::Etcd(..) => PeerRecord::from_json(text),
        };
        let record = match record {
            Ok(record) => record,
            Err(why) => bail!(Mistake, "the record {id} would be wrong: {why}"),
        };
        let mut list = RecordList::default();
        let put = |record: &PeerRecord| RecordChange::Put(Box::new(record.clone()));
        let others = all.iter().filter(|it| it.id != *id);
        let others =
            others.filter_map(|it| Some((RecordId::clone(&it.id), put(it.record.as_ref().ok()?))));
        list.change(others);
        list.change([(RecordId::clone(id), put(&record))]);
        match list.refused().get(id) {
            Some(why) => bail!(
                State,
                "an agent of {source} would refuse the record {id}: {why}"
            ),
            None => Ok(record),
        }
    }

    /// Puts a record in the place of what it was, or deletes it.
    fn change(
        &self,
        id: &RecordId,
        before: Option<&[u8]>,
        new: Option<&[u8]>,
        source: &AgentSource,
    ) -> Result<()> {
        let done = match self {
            Self::Folder(path) => {
                let path = path.join(&**id);
                let done = match (before, new) {
                    (Some(before), _) if !is_same(&path, before) => Ok(false),
                    (_, Some(new)) => replace_file(&path, new, before.is_none()),
                    (_, None) => fs::remove_file(&path).map(|()| true),
                };
                done.map_err(|error| explain(&error))
            }
            Self::Etcd(address, client) => {
                let key = format!("{}{id}", address.prefix);
                let asked = match (before, new) {
                    (before, Some(new)) => put_request(&key, before, new),
                    (before, None) => delete_request(&key, before.unwrap_or_default()),
                };
                let answer = client.ask_any(address, "kv/txn", &asked);
                answer.and_then(|answer| is_changed(&answer)).map_err(told)
            }
        };
        match done {
            Ok(true) => Ok(()),
            Ok(false) => bail!(
                State,
                "the record {id} of {source} was changed meanwhile, and stays as it is: try again"
            ),
            Err(why) => bail!(State, "cannot change the record {id} of {source}: {why}"),
        }
    }
}

fn told(refusal: EtcdRefusal) -> String {
    match refusal {
        EtcdRefusal::Failed(why) => why,
        EtcdRefusal::TooLong => "its answer is too long".into(),
        EtcdRefusal::Token => "it refuses its own token".into(),
        EtcdRefusal::Gap => "it was compacted meanwhile: try again".into(),
    }
}

fn is_same(path: &std::path::Path, before: &[u8]) -> bool {
    read_file(path, MAX_RECORD).is_ok_and(|text| *text == *before)
}

/// Replaces a file, or makes a new one, whole at once; false where there is one already.
fn replace_file(path: &std::path::Path, text: &[u8], is_new: bool) -> std::io::Result<bool> {
    // Agents pass over hidden files.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let next = path.with_file_name(format!(".{name}.{}", std::process::id()));
    // Anyone may read a record: it has no secret, and an agent has no right of root's to read it.
    let mode = fs::metadata(path).map_or(0o644, |it| {
        std::os::unix::fs::MetadataExt::mode(&it) & 0o777
    });
    let write = || -> std::io::Result<bool> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&next)?;
        file.write_all(text)?;
        file.sync_all()?;
        if !is_new {
            return fs::rename(&next, path).map(|()| true);
        }
        match renameat_with(CWD, &next, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Ok(false),
            renamed => Ok(renamed.map(|()| true)?),
        }
    };
    let done = write();
    let _ = fs::remove_file(&next);
    done
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
