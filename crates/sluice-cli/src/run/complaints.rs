//! What is wrong with the manifests, each thing told once, and once more when it is mended.

use sluice_api::check::Problem;
use sluice_policy::compile::Compiled;
use sluice_policy::conditions::{Draft, Status};

use crate::view::Level;

/// Lines of one reload; a directory full of mistakes says how many more there are.
const TOLD_AT_ONCE: usize = 20;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint {
    /// What is mended once nothing is wrong with it any more: a file, an object in it, or an object's condition.
    about: String,
    text: String,
}

impl Complaint {
    pub(super) fn new(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { about: about.into(), text: text.into() }
    }

    fn of_problem(problem: &Problem) -> Self {
        let about = match &problem.object {
            Some(object) => format!("{}: {object}", problem.file),
            None => problem.file.clone(),
        };
        Self::new(about, problem.to_string())
    }

    /// Whether one is about a part of what the other is about.
    fn touches(&self, about: &str) -> bool {
        let part =
            |whole: &str, part: &str| part.strip_prefix(whole).is_some_and(|rest| rest.starts_with(": "));
        part(&self.about, about) || part(about, &self.about) || self.about == about
    }
}

/// What is wrong now.
#[derive(Debug, Default)]
pub(super) struct Complaints(Vec<Complaint>);

impl Complaints {
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|complaint| complaint.text.as_str())
    }

    /// Takes everything that is wrong now. What is to be said of it: nothing of what was wrong before.
    pub(super) fn update(&mut self, now: Vec<Complaint>) -> Vec<(Level, String)> {
        let new: Vec<&Complaint> = now.iter().filter(|one| !self.0.contains(one)).collect();
        let mut said: Vec<(Level, String)> =
            new.iter().take(TOLD_AT_ONCE).map(|one| (Level::Warning, one.text.clone())).collect();
        if let Some(more @ 1..) = new.len().checked_sub(TOLD_AT_ONCE) {
            said.push((Level::Warning, format!("and {more} more problems: sluice check shows them all")));
        }
        let mut mended: Vec<&str> = self.0.iter().map(|one| one.about.as_str()).collect();
        mended.dedup();
        mended.retain(|about| !now.iter().any(|one| one.touches(about)));
        said.extend(mended.iter().take(TOLD_AT_ONCE).map(|about| (Level::Info, format!("mended: {about}"))));
        if let Some(more @ 1..) = mended.len().checked_sub(TOLD_AT_ONCE) {
            said.push((Level::Info, format!("and {more} more are mended")));
        }
        self.0 = now;
        said
    }

    /// Adds one to what is wrong.
    pub(super) fn add(&mut self, complaint: Complaint) -> Vec<(Level, String)> {
        let mut now = self.0.clone();
        if !now.contains(&complaint) {
            now.push(complaint);
        }
        self.update(now)
    }
}

/// Of the files, and of what their objects' status would say, as far as it is not good.
pub(super) fn of(problems: &[Problem], compiled: &Compiled) -> Vec<Complaint> {
    let mut all: Vec<Complaint> = problems.iter().map(Complaint::of_problem).collect();
    let files = all.len();
    let mut add = |object: &dyn std::fmt::Display, draft: &Draft| {
        // The condition of an object that cannot be read repeats what its file's problem says.
        let repeated = all.iter().take(files).any(|problem| problem.text == draft.message);
        if draft.status == Status::False && !repeated {
            let about = format!("{object}: {}", draft.type_);
            let complaint =
                Complaint::new(&*about, format!("{about}=False/{}: {}", draft.reason, draft.message));
            if !all.contains(&complaint) {
                all.push(complaint);
            }
        }
    };
    for report in compiled.routes.values() {
        let drafts = [Some(&report.accepted), report.resolved_refs.as_ref(), report.programmed.as_ref()];
        drafts.into_iter().flatten().for_each(|draft| add(&report.object, draft));
    }
    for report in compiled.policies.values() {
        for ancestor in &report.ancestors {
            let drafts = [Some(&ancestor.accepted), ancestor.programmed.as_ref()];
            drafts.into_iter().flatten().for_each(|draft| add(&report.object, draft));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(about: &str, text: &str) -> Complaint {
        Complaint::new(about, text)
    }

    fn said(said: Vec<(Level, String)>) -> Vec<String> {
        said.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn each_is_told_once_and_once_more_when_it_is_mended() {
        let mut complaints = Complaints::default();
        let wrong = of_file("a.yaml: ModelRoute/a", "a.yaml:3: ModelRoute/a: wrong");
        assert_eq!(complaints.update(vec![wrong.clone()]), [(Level::Warning, wrong.text.clone())]);
        assert!(complaints.update(vec![wrong.clone()]).is_empty());
        assert_eq!(complaints.texts().collect::<Vec<_>>(), [wrong.text.as_str()]);
        assert_eq!(complaints.update(Vec::new()), [(Level::Info, "mended: a.yaml: ModelRoute/a".to_owned())]);
        assert!(complaints.update(Vec::new()).is_empty());
    }

    #[test]
    fn what_is_still_wrong_in_another_way_is_not_mended() {
        let mut complaints = Complaints::default();
        complaints.update(vec![of_file("a.yaml: ModelRoute/a", "a.yaml:3: ModelRoute/a: wrong")]);
        let whole = of_file("a.yaml", "a.yaml:9: is no YAML");
        assert_eq!(said(complaints.update(vec![whole])), ["a.yaml:9: is no YAML"]);
        let part = of_file("a.yaml: ModelRoute/b", "a.yaml:5: ModelRoute/b: wrong");
        assert_eq!(said(complaints.update(vec![part])), ["a.yaml:5: ModelRoute/b: wrong"]);
        let other = of_file("a.yaml.yaml", "a.yaml.yaml:1: wrong");
        assert_eq!(
            said(complaints.update(vec![other])),
            ["a.yaml.yaml:1: wrong", "mended: a.yaml: ModelRoute/b"]
        );
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut complaints = Complaints::default();
        let flood =
            |count: usize| (0..count).map(|n| of_file(&format!("{n}.yaml"), &format!("{n}.yaml: wrong")));
        let told = said(complaints.update(flood(50).collect()));
        assert_eq!(told.len(), TOLD_AT_ONCE + 1);
        assert!(told.last().is_some_and(|last| last.starts_with("and 30 more problems")), "{told:?}");
        let told = said(complaints.update(Vec::new()));
        assert!(told.last().is_some_and(|last| last.starts_with("and 30 more are mended")), "{told:?}");
        assert_eq!(said(complaints.update(flood(TOLD_AT_ONCE).collect())).len(), TOLD_AT_ONCE);
    }
}
