#include "base/text.h"
#include "models/decoder/model_state.h"

namespace moracle {

Result<Drafter> parse_drafter(std::string_view text) {
  if (text == "off") return Drafter::kNone;
  if (text == "ngram") return Drafter::kNgram;
  if (text == "mtp") return Drafter::kMtp;
  if (text == "auto") return Drafter::kAuto;
  return Error{ErrorKind::kInvalidArgument, "", "speculate", "off, ngram, mtp or auto",
               str("it is '", text, "'")};
}

Result<Drafter> ModelAccess::drafter(const Model& model, Drafter wanted) {
  const bool has_layer = model.state_->next_tokens != nullptr;
  if (wanted == Drafter::kAuto) return has_layer ? Drafter::kMtp : Drafter::kNgram;
  if (wanted != Drafter::kMtp || has_layer) return wanted;
  return Error{ErrorKind::kUnsupported, "", "speculate",
               "a model that was loaded with its layer for multi-token prediction (next_tokens)",
               "it was loaded without"};
}

Status check(const Speculation& speculation) {
  if (speculation.max_drafts >= 1 && speculation.max_drafts <= Speculation::kMaxDrafts) return {};
  return Error{ErrorKind::kInvalidArgument, "", "max_drafts",
               str("1 to ", Speculation::kMaxDrafts, " tokens"),
               str("it is ", speculation.max_drafts)};
}

}  // namespace moracle
