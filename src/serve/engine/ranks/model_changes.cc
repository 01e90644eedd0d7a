#include "serve/engine/ranks/model_changes.h"

#include "base/try.h"
#include "models/decoder/model_state.h"
#include "parallel/agreement.h"

namespace moracle::serve {
namespace {

// Opens the folder. Fails on all ranks if it fails on one, because the next step is collective.
Result<Checkpoint> open_on_ranks(const std::shared_ptr<Group>& group, const std::string& folder) {
  Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (group) {
    MORACLE_CHECK(agree(*group, {{"a checkpoint", checkpoint ? "one that can be opened"
                                                             : checkpoint.error().to_string()}}));
  }
  return checkpoint;
}

// Strip the folder from the error: clients must not learn where adapters are stored.
Error below(const std::string& folder, Error error) {
  if (error.file.starts_with(folder + "/")) error.file.erase(0, folder.size() + 1);
  return error;
}

}  // namespace

Status read_weights(Model& model, const std::string& folder) {
  MORACLE_TRY(const Checkpoint checkpoint, open_on_ranks(model.group(), folder));
  return model.reload(checkpoint);
}

Result<std::shared_ptr<const LoraAdapter>> load_again(Model& model, const std::string& folder,
                                                      ModelOptions options,
                                                      const AdapterChange& change) {
  const std::shared_ptr<Group> group = model.group();
  MORACLE_TRY(const Checkpoint checkpoint, open_on_ranks(group, folder));
  const Status unchanged = ModelAccess::check_unchanged(model, checkpoint);
  Result<LoraAdapter> opened = LoraAdapter::open(change.folder, checkpoint, change.inside);
  const Status own = !unchanged ? unchanged
                     : opened   ? Status()
                                : below(change.inside, opened.error());
  if (group) MORACLE_CHECK(all_succeed(*group, own, "to take the new adapter"));
  MORACLE_CHECK(own);
  MORACLE_TRY(LoraAdapter read, std::move(opened));
  auto adapter = std::make_shared<const LoraAdapter>(std::move(read));
  options.read_adapters.push_back(adapter);
  MORACLE_TRY(Model fresh, Model::load(checkpoint, options));
  model = std::move(fresh);
  return adapter;
}

}  // namespace moracle::serve
