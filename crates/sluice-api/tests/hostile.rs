//! Whatever a file holds, reading it ends with an answer, and no answer shows a secret.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;
use sluice_api::check;

/// YAML-like text: the characters that matter to a parser, and pieces of real manifests.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("apiVersion: sluice.dev/v1alpha1\n".to_owned()),
        Just("kind: ModelRoute\n".to_owned()),
        Just("kind: ReliabilityPolicy\n".to_owned()),
        Just("kind: List\napiVersion: v1\nitems:\n- ".to_owned()),
        Just("metadata: {name: a}\n".to_owned()),
        Just("spec:\n".to_owned()),
        Just("  targets:\n  - ".to_owned()),
        Just("  breaker: {window: {type: Count}, minimumCalls: ".to_owned()),
        Just("&a [*a, *a]".to_owned()),
        Just("---\n".to_owned()),
        Just("<<: ".to_owned()),
        Just("!!int ".to_owned()),
        "[-:{}\\[\\]#&*!|>'\"%@` \n\ta-z0-9.]{0,12}",
        "\\PC{0,8}",
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn reading_ends_with_an_answer(text in text()) {
        for document in check::read("f", &text) {
            if let Err(problems) = document.outcome {
                prop_assert!(!problems.is_empty());
                for problem in problems {
                    prop_assert!(!problem.message.is_empty());
                    prop_assert!(problem.line.is_none_or(|line| line <= text.lines().count().max(1) + 1), "{problem}");
                }
            }
        }
    }

    #[test]
    fn no_problem_shows_a_value_of_a_secret(
        before in "[-:{}\\[\\]#&*!|>'\"%@` \n\t]{0,6}",
        after in "[-:{}\\[\\]#&*!|>'\"%@` \n\t]{0,6}",
        field in prop_oneof![Just("data"), Just("stringData"), Just("metadata"), Just("wrong")],
    ) {
        let text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: openai}}\n{field}:\n  api-key: {before}hunter2{after}\n"
        );
        for document in check::read("f", &text) {
            let shown = match document.outcome {
                Ok(_) => continue,
                Err(problems) => format!("{problems:?} {}", problems[0]),
            };
            // a value that became a key is named, as keys are; values are not
            prop_assert!(!shown.contains("hunter2") || before.contains(['\n', '{', '?']), "{shown}");
        }
    }
}

/// What takes a parser long, or fills a terminal, is cut short before and after it.
#[test]
fn depth_and_length_are_bounded() {
    let long = "x".repeat(300_000);
    let object = |kind: &str, name: &str| {
        format!("apiVersion: sluice.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{}}\n")
    };
    let cases = [
        ("[".repeat(100_000), "nested deeper"),
        ("{a: ".repeat(100_000), "nested deeper"),
        (format!("a:\n  b: {}", "[{".repeat(100_000)), "nested deeper"),
        ("- ".repeat(100_000), "nested deeper"),
        ("? ".repeat(100_000), "nested deeper"),
        ("[".repeat(1_000), "is no YAML"),
        (object(&long, "chat"), "is no kind of"),
        (object("ModelRoute", &long), "must be a DNS name"),
        (object("ModelRoute", "chat").replace("spec: {}", &format!("spec: {{{long}: 1}}")), ""),
        (object("ModelRoute", "chat").replace("sluice.dev", &long), "has no kind"),
        (
            object("ModelRoute", "chat").replace("sluice.dev/v1alpha1", &format!("sluice.dev/{long}")),
            "only version",
        ),
        (format!("a: *{long}"), ""),
    ];
    for (text, why) in cases {
        let start = &text[..60.min(text.len())];
        let documents = check::read("f", &text);
        let problems = documents.into_iter().flat_map(|document| document.outcome.unwrap_err());
        let told: Vec<String> = problems.map(|problem| problem.to_string()).collect();
        assert!(told.iter().any(|line| line.contains(why)), "{start}: {told:?}");
        assert!(told.iter().all(|line| line.chars().count() < 2_000), "{start}: {}", told[0].len());
    }
    // Brackets that close are no depth, however many they are.
    let flat = format!("apiVersion: v1\nkind: ConfigMap\ndata: {{a: [{}]}}\n", "[], ".repeat(20_000));
    assert!(check::read("f", &flat).iter().all(|document| document.outcome.is_ok()));
}
