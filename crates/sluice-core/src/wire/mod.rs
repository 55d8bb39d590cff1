//! What the providers' wire formats say, as far as reliability needs to know it.
//!
//! Sluice relays the bytes of both formats and understands as little of them as it can: which model is
//! asked for and how long the answer may be ([`read_request`]), when the first token came, what was used and
//! whether it failed ([`StreamReader`], [`read_answer`]), and how to say no so that the official SDKs raise
//! their right exception ([`error_body`], [`stream_error`]). Nothing here keeps or returns text of a prompt or
//! an answer.
//!
//! | module | direction |
//! |---|---|
//! | `request` | facts of a request's body, in one pass that borrows |
//! | `rewrite` | the two edits a body may get; every other byte stays |
//! | `openai`, `anthropic` | facts of one streamed event |
//! | `answer` | facts of an answer that is not streamed, and of error bodies |
//! | `errors`, `degraded` | what Sluice itself answers |

mod answer;
mod anthropic;
mod degraded;
mod errors;
mod openai;
mod operation;
mod request;
mod rewrite;
mod scan;
mod stream;
mod text;
mod usage;

pub use answer::{AnswerFacts, ProviderError, read_answer};
pub use degraded::{StaticAnswer, static_answer, static_stream};
pub use errors::{ErrorText, error_body, model_body, models_body, stream_error};
pub use operation::{Operation, model_id};
pub use request::{MaxOutput, RequestError, RequestFacts, read_request};
pub use rewrite::{Edits, ask_for_usage, replace_model};
pub use stream::{Delta, Fact, StreamReader};
pub use usage::Usage;
