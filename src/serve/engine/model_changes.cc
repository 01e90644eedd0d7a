#include "serve/engine/model_changes.h"

#include "base/try.h"
#include "parallel/agreement.h"

namespace moracle::serve {
namespace {

// Opens the folder. Ranks go on together or not at all, because what follows needs all of them.
Result<Checkpoint> open_on_ranks(const std::shared_ptr<Group>& group, const std::string& folder) {
  Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (group) {
    MORACLE_CHECK(agree(*group, {{"a checkpoint", checkpoint ? "one that can be opened"
                                                             : checkpoint.error().to_string()}}));
  }
  return checkpoint;
}

}  // namespace

Status read_weights(Model& model, const std::string& folder) {
  MORACLE_TRY(const Checkpoint checkpoint, open_on_ranks(model.group(), folder));
  return model.reload(checkpoint);
}

Status load_again(Model& model, const std::string& folder, const ModelOptions& options) {
  MORACLE_TRY(const Checkpoint checkpoint, open_on_ranks(model.group(), folder));
  MORACLE_TRY(Model fresh, Model::load(checkpoint, options));
  model = std::move(fresh);
  return {};
}

}  // namespace moracle::serve
