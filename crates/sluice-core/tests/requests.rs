//! Facts of request bodies, and the edits they get.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use sluice_core::wire::{Operation, RequestError, RequestFacts, ask_for_usage, read_request, replace_model};

fn read(operation: Operation, body: &Value) -> RequestFacts {
    read_request(operation, body.to_string().as_bytes()).unwrap()
}

fn chat(body: &str) -> Result<RequestFacts, RequestError> {
    read_request(Operation::ChatCompletions, body.as_bytes())
}

#[test]
fn a_chat_request() {
    let facts = read(
        Operation::ChatCompletions,
        &json!({
            "messages": [{"role": "user", "content": "héllo"}], "model": "gpt-4o", "stream": true,
            "stream_options": {"include_usage": true}, "max_tokens": 10, "max_completion_tokens": 20, "n": 3,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "store": true, "temperature": 0.5,
        }),
    );
    assert_eq!(facts.model, "gpt-4o");
    assert!(facts.stream && facts.include_usage && facts.has_tools && facts.stored && !facts.background);
    assert_eq!(facts.max_output.per_choice, Some(20), "the larger one");
    assert_eq!(facts.max_output.total(), Some(60));
    assert!(facts.text_bytes >= 6 + 4, "{facts:?}");
}

#[test]
fn an_anthropic_request() {
    let facts = read(
        Operation::Messages,
        &json!({
            "model": "claude", "max_tokens": 100, "system": [{"type": "text", "text": "be brief"}],
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A".repeat(100_000)}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "B".repeat(5_000)}},
            ]}],
        }),
    );
    assert!(!facts.stream);
    assert_eq!(facts.max_output.total(), Some(100));
    assert_eq!(facts.binary_parts, 1);
    assert!((5_000..6_000).contains(&facts.text_bytes), "the text counts, the image does not: {facts:?}");
}

#[test]
fn a_responses_request() {
    let facts = read(
        Operation::Responses,
        &json!({
            "model": "o4", "input": [{"role": "user", "content": [
                {"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
            ]}], "instructions": "be brief", "max_output_tokens": 7, "background": true, "stream": null,
        }),
    );
    assert_eq!((facts.max_output.total(), facts.binary_parts, facts.background), (Some(7), 1, true));
}

#[test]
fn prompts_and_token_numbers() {
    let choices = |prompt: Value| {
        read(
            Operation::Completions,
            &json!({"model": "m", "prompt": prompt, "max_tokens": 10, "n": 2, "best_of": 3}),
        )
    };
    assert_eq!(choices(json!("a")).max_output.total(), Some(30));
    assert_eq!(choices(json!(["a", "b"])).max_output.total(), Some(60));
    assert_eq!(choices(json!([1, 2, 3])).max_output.total(), Some(30), "one prompt of three tokens");
    assert_eq!(choices(json!([1, 2, 3])).input_token_ids, 3);
    assert_eq!(choices(json!([[1, 2], [3]])).max_output.total(), Some(60));
    assert_eq!(choices(json!([[1, 2], [3]])).input_token_ids, 3);
    let embedding = read(Operation::Embeddings, &json!({"model": "e", "input": ["abc", "de"]}));
    assert_eq!((embedding.text_bytes, embedding.max_output.total()), (5, None));
}

#[test]
fn what_is_wrong_is_named_with_its_fix_and_never_quoted() {
    for (body, field) in [
        (r#"{"messages":[]}"#, "`model` is missing"),
        (r#"{"model":3}"#, "`model` must be a string"),
        (r#"{"model":""}"#, "`model` must be a string"),
        (r#"{"model":null}"#, "`model` must be a string"),
        (r#"{"model":"a","model":"b"}"#, "`model` occurs more than once"),
        (r#"{"model":"a","mod\u0065l":"b"}"#, "`model` occurs more than once"),
        (r#"{"model":"a","max_tokens":1,"max_tokens":2}"#, "`max_tokens` occurs more than once"),
        (r#"{"model":"a","stream":"yes"}"#, "`stream` must be true or false"),
        (r#"{"model":"a","max_tokens":-1}"#, "`max_tokens` must be a number"),
        (r#"{"model":"a","max_tokens":"SECRET"}"#, "`max_tokens` must be a number"),
        (r#"{"model":"a","messages":["SECRET"#, "no JSON object"),
        (r#"{"model":"a"} SECRET"#, "no JSON object"),
        (r#"["SECRET"]"#, "no JSON object"),
        ("SECRET", "no JSON object"),
        ("", "no JSON object"),
        ("\u{feff}{}", "no JSON object"),
    ] {
        let error = chat(body).unwrap_err().to_string();
        assert!(error.contains(field), "{body}: {error}");
        assert!(!error.contains("SECRET"), "{error}");
        assert!(error.contains(": "), "{error} has no fix");
    }
    assert!(chat(&format!(r#"{{"model":"{}"}}"#, "m".repeat(257))).is_err());
    let bytes = b"{\"model\":\"\xFF\"}";
    assert!(read_request(Operation::ChatCompletions, bytes).is_err());
}

#[test]
fn numbers_are_taken_as_clients_write_them() {
    assert_eq!(chat(r#"{"model":"a","max_tokens":16.0}"#).unwrap().max_output.total(), Some(16));
    assert_eq!(chat(r#"{"model":"a","max_tokens":null}"#).unwrap().max_output.total(), None);
    assert_eq!(chat(r#"{"model":"a","max_tokens":0}"#).unwrap().max_output.total(), Some(0));
    assert_eq!(chat(r#"{"model":"a","n":0,"max_tokens":5}"#).unwrap().max_output.total(), Some(5));
    let huge = chat(r#"{"model":"a","max_tokens":1e300,"n":18446744073709551615}"#).unwrap();
    assert_eq!(huge.max_output.total(), Some(1 << 32), "cut to what arithmetic bears");
}

#[test]
fn nesting_and_odd_parts_do_not_break_it() {
    let deep = format!(r#"{{"model":"a","metadata":{}{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    assert!(chat(&deep).is_ok(), "what is skipped may be as deep as it likes");
    let deep = format!(r#"{{"model":"a","messages":{}{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    assert!(chat(&deep).is_err(), "what is read may not exhaust the stack");
    let odd = json!({"model": "a", "messages": {"source": "x", "image_url": null, "content": [null, true, 1.5, -3]}});
    assert_eq!(read(Operation::ChatCompletions, &odd).binary_parts, 1);
}

#[test]
fn schemas_may_describe_members_of_any_name() {
    let tools =
        json!([{"function": {"parameters": {"properties": {"source": {"description": "d".repeat(500)}}}}}]);
    let facts = read(Operation::ChatCompletions, &json!({"model": "a", "tools": tools}));
    assert_eq!(facts.binary_parts, 0);
    assert!(facts.text_bytes >= 500);
    let none = read(
        Operation::ChatCompletions,
        &json!({"model": "a", "tools": [], "response_format": {"type": "text"}}),
    );
    assert!(!none.has_tools);
}

#[test]
fn the_model_is_replaced_and_nothing_else() {
    let body = r#" { "messages":[{"content":"\"model\":\"gpt-4o\""}],
  "model" : "gpt-\u0034o" , "seed":1.0e2,"x":{"model":"inner"} } "#;
    let facts = chat(body).unwrap();
    assert_eq!(facts.model, "gpt-4o");
    let edited = replace_model(&facts, "my\"model").apply(&Bytes::from(body));
    assert_eq!(edited, body.replace(r#""gpt-\u0034o""#, r#""my\"model""#));
    assert!(replace_model(&facts, "gpt-4o").is_empty(), "as asked: not touched, not even its escapes");
}

#[test]
fn usage_is_asked_for_only_where_it_must_be() {
    use Operation::{ChatCompletions, Completions, Messages, Responses};

    let edit = |operation, body: &str| {
        let facts = read_request(operation, body.as_bytes()).unwrap();
        let edits = ask_for_usage(operation, &facts, body.as_bytes()).and(replace_model(&facts, "up"));
        String::from_utf8(edits.apply(&Bytes::from(body.to_owned())).to_vec()).unwrap()
    };
    for (operation, body, want) in [
        (
            ChatCompletions,
            r#" {"model":"m","stream":true}"#,
            r#" {"stream_options":{"include_usage":true},"model":"up","stream":true}"#,
        ),
        (
            Completions,
            r#"{"stream":true,"model":"m"}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true,"model":"up"}"#,
        ),
        (ChatCompletions, r#"{"model":"m","stream":false}"#, r#"{"model":"up","stream":false}"#),
        (
            ChatCompletions,
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"up","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            ChatCompletions,
            r#"{"stream_options": {"include_usage":false,"x":1} ,"model":"m","stream":true}"#,
            r#"{"stream_options": {"include_usage":true,"x":1} ,"model":"up","stream":true}"#,
        ),
        (
            ChatCompletions,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"model":"up","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            ChatCompletions,
            r#"{"model":"m","stream":true,"stream_options":7}"#,
            r#"{"model":"up","stream":true,"stream_options":7}"#,
        ),
        (Responses, r#"{"model":"m","stream":true}"#, r#"{"model":"up","stream":true}"#),
        (Messages, r#"{"model":"m","stream":true}"#, r#"{"model":"up","stream":true}"#),
    ] {
        assert_eq!(edit(operation, body), want, "{operation:?} {body}");
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        Just(Value::from("\",\"model\":\"evil\",\"")),
        Just(Value::from("\\\"stream_options\\\":{")),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("model|stream_options|usage|[a-z\"\\\\]{0,6}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Writes JSON as clients may: escapes of any kind, white space anywhere.
fn pretty(value: &Value, style: u8) -> String {
    let text = if style & 1 == 0 { value.to_string() } else { serde_json::to_string_pretty(value).unwrap() };
    if style & 2 == 0 { text } else { text.replace('é', "\\u00e9").replace('/', "\\/") }
}

/// A failure's seed is printed and kept in a file beside this one, and is run first from then on.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn edits_change_the_model_and_the_usage_option_alone(
        members in prop::collection::btree_map("[a-z]{1,8}|messages|tools", json_value(), 0..6),
        model in "\\PC{1,30}", upstream in "\\PC{1,30}", style in 0_u8..4, stream in any::<bool>(),
        options in prop::option::of(prop::collection::btree_map("[a-z]{1,5}", any::<bool>(), 0..3)),
    ) {
        let mut body: serde_json::Map<String, Value> = members.into_iter()
            .filter(|(name, _)| !["n", "store", "stream", "model"].contains(&name.as_str())).collect();
        body.insert("model".into(), model.clone().into());
        body.insert("stream".into(), stream.into());
        if let Some(options) = &options {
            body.insert("stream_options".into(), json!(options));
        }
        let body = Value::Object(body);
        let text = pretty(&body, style);
        // As read, not as written: reading a float rounds it.
        let body: Value = serde_json::from_str(&text).unwrap();
        let facts = chat(&text).unwrap();
        prop_assert_eq!(&facts.model, &model);
        let edits = replace_model(&facts, &upstream).and(ask_for_usage(Operation::ChatCompletions, &facts, text.as_bytes()));
        let edited: Value = serde_json::from_slice(&edits.apply(&Bytes::from(text))).unwrap();
        let mut want = body;
        want["model"] = upstream.into();
        if stream {
            let mut options = json!(options.unwrap_or_default());
            options["include_usage"] = true.into();
            want["stream_options"] = options;
        }
        prop_assert_eq!(edited, want);
    }

    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_request(Operation::Messages, &body);
    }
}
