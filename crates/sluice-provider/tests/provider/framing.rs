//! The framings: the same events, written in other ways.

use crate::support::{post_chat, provider, raw, raw_chat};
use sluice_provider::Scenario;

/// A reader after the standard's text.
fn data_of(stream: &str) -> Vec<String> {
    let stream = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    let lines = stream.replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut data: Vec<&str> = Vec::new();
    for line in lines.split('\n') {
        if line.is_empty() {
            if !data.is_empty() {
                events.push(std::mem::take(&mut data).join("\n"));
            }
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push(value.strip_prefix(' ').unwrap_or(value));
        }
    }
    events
}

fn compact(events: &[String]) -> Vec<String> {
    let parse =
        |event: &String| serde_json::from_str::<serde_json::Value>(event).map(|value| value.to_string());
    events.iter().map(|event| parse(event).unwrap_or_else(|_| event.clone())).collect()
}

#[tokio::test]
async fn every_framing_carries_the_same_events() {
    let provider = provider("default: {tokens: 12, text: utf8}").await;
    let without_id = |text: &str| {
        let mut events = compact(&data_of(text));
        for event in &mut events {
            if let Some(at) = event.find("chatcmpl-") {
                event.replace_range(at..at + 21, "");
            }
        }
        events
    };
    let usual = without_id(&post_chat(&provider, true).await.text);
    assert_eq!(usual.len(), 15);
    for framing in [
        "{lineEnd: crlf}",
        "{lineEnd: cr}",
        "{space: false}",
        "{comments: true}",
        "{bom: true}",
        "{splitData: true}",
        "{bytePerWrite: true}",
        "{lineEnd: crlf, space: false, comments: true, bom: true, bytePerWrite: true}",
    ] {
        let yaml = format!("default: {{tokens: 12, text: utf8, framing: {framing}}}");
        provider.set(Scenario::from_yaml(&yaml).unwrap());
        let answer = post_chat(&provider, true).await;
        assert_eq!(without_id(&answer.text), usual, "{framing}");
        assert_eq!(answer.text.starts_with('\u{feff}'), framing.contains("bom"));
        assert_eq!(answer.text.contains('\r'), framing.contains("lineEnd"));
    }
    provider
        .set(Scenario::from_yaml("default: {tokens: 12, text: utf8, framing: {finalBlank: false}}").unwrap());
    let text = post_chat(&provider, true).await.text;
    assert!(text.ends_with("data: [DONE]"));
    assert_eq!(without_id(&text), usual[..14], "the last event is cut off by the end");
}

#[tokio::test]
async fn a_byte_per_write_is_a_chunk_per_byte() {
    let provider = provider("default: {tokens: 1, framing: {bytePerWrite: true}}").await;
    let call = raw_chat(true).replace("host: p", "host: p\r\nconnection: close");
    let (bytes, error) = raw(&provider, &call).await;
    assert_eq!(error, None);
    let text = String::from_utf8(bytes).unwrap();
    let chunks = text.split_once("\r\n\r\n").unwrap().1;
    assert!(chunks.starts_with("1\r\nd\r\n1\r\na\r\n1\r\nt\r\n1\r\na\r\n"), "{chunks}");
}

#[tokio::test]
async fn huge_lines() {
    let provider = provider("default: {tokens: 2, tokenBytes: 3000000}").await;
    let answer = post_chat(&provider, true).await;
    assert_eq!(answer.chat_text().len(), 6_000_000);
    assert_eq!(answer.text.lines().map(str::len).max().unwrap() / 1_000_000, 3);
}
