use std::sync::mpsc::sync_channel;

use super::super::news::AgentNews;
use super::*;

#[test]
fn a_list_of_too_many_records_removes_nothing() {
    let mut command = Command::new("true");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a program");
    let stdout = child.stdout.take().expect("a pipe");
    child.wait().expect("it ends");
    let (sender, news) = sync_channel(10);
    let mut source = ProgramSource::new(stdout, NewsSender(sender));
    source.ids = (0..MAX_RECORDS)
        .map(|number| RecordId::from(number.to_string()))
        .collect();
    let mut next = |line: &[u8]| {
        source.line(line);
        match news.try_recv().ok()? {
            AgentNews::Source(SourceNews::Failing(why)) => Some(why),
            AgentNews::Source(SourceNews::Listed(ids, None)) => Some(ids.len().to_string()),
            _ => Some("other news".into()),
        }
    };
    let why = next(b"junk").expect("news");
    assert!(why.contains("nothing is removed"), "{why}");
    assert_eq!(next(b"more junk"), None);
    assert_eq!(next(br#"{"listed":true}"#), None);
    // The next run of the program may have fewer.
    assert_eq!(next(b"\0ended").as_deref(), Some("ended"));
    assert_eq!(next(br#"{"listed":true}"#).as_deref(), Some("0"));
}
