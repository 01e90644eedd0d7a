#include "models/description.h"

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {

#define X(name, describe) Result<Description> describe(const Checkpoint&);
#include "models/architectures.inc"
#undef X

namespace {
constexpr Architecture kArchitectures[] = {
#define X(name, describe) {name, describe},
#include "models/architectures.inc"
#undef X
};
}  // namespace

Result<Description> describe(const Checkpoint& checkpoint) {
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) {
    known.push_back(architecture.name);
    if (architecture.name != checkpoint.architecture()) continue;
    MORACLE_TRY(Description description, architecture.describe(checkpoint));
    const std::vector<std::string> left = checkpoint.unclaimed();
    if (left.empty()) return description;
    return Error{
        ErrorKind::kBadFile, checkpoint.state().tensors.file_of(left[0]),
        "tensor '" + left[0] + "'", str("to be part of ", architecture.name),
        str("nothing reads it", left.size() > 1 ? str(", nor ", left.size() - 1, " more") : "")};
  }
  return Error{ErrorKind::kUnsupported, checkpoint.folder() + "/config.json", "architectures",
               "one of " + join(known), "it is '" + checkpoint.architecture() + "'"};
}

}  // namespace moracle
