//! What the tests of a real cluster are made of.
//!
//! A test is a function over a [`scene::Scene`]: a namespace of its own on the cluster that `KUBECONFIG` names, with Sluice
//! installed from `charts/` and the images that go with `SLUICE_IMAGE`. Nothing else is asked for, so the suite runs
//! against any cluster whose nodes have these images.
//!
//! Tests go on beside each other, but for those that take parts of the release away: these have it for themselves
//! ([`scene::Needs`]). Everything is awaited with a bound and nothing is slept for, except where the proof is that
//! nothing happens.
//!
//! | module | what it has |
//! |---|---|
//! | [`scene`] | a test's namespace: begun, ended, and when the test fails, told of |
//! | [`cluster`] | objects, by their kind and as JSON |
//! | [`condition`] | what their status says |
//! | [`release`] | Sluice itself, installed by Helm |
//! | [`manifests`] | routes, policies and workloads of the tests |
//! | [`provider`], [`app`] | the scripted provider and an application with the SDKs, as pods |
//! | [`agent`] | an agent that says what the test wants it to say |
//! | [`evidence`] | logs, events and objects of a test that failed |
//! | [`until`], [`command`] | waiting; programs |

pub mod agent;
pub mod app;
pub mod cluster;
pub mod command;
pub mod condition;
pub mod evidence;
pub mod manifests;
pub mod provider;
pub mod release;
pub mod scene;
pub mod until;
