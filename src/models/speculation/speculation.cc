#include "base/text.h"
#include "moracle/model.h"

namespace moracle {

Result<Drafter> parse_drafter(std::string_view text) {
  if (text == "off") return Drafter::kNone;
  if (text == "ngram") return Drafter::kNgram;
  return Error{ErrorKind::kInvalidArgument, "", "speculate", "off or ngram",
               str("it is '", text, "'")};
}

Status check(const Speculation& speculation) {
  if (speculation.max_drafts >= 1 && speculation.max_drafts <= Speculation::kMaxDrafts) return {};
  return Error{ErrorKind::kInvalidArgument, "", "max_drafts",
               str("1 to ", Speculation::kMaxDrafts, " tokens"),
               str("it is ", speculation.max_drafts)};
}

}  // namespace moracle
