#include "serve/api/adapters.h"

#include <filesystem>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

Error wrong_adapter(const char* field, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", field, std::move(need), std::move(fact)};
}

}  // namespace

Status Adapters::add(const std::string& name, const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (!loaded_.try_emplace(name, Loaded{next_id_, folder}).second)
    return wrong_adapter("lora", "a name of its own for each adapter", quote(name) + " is in use");
  ++next_id_;
  return {};
}

std::optional<int32_t> Adapters::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(name);
  return found == loaded_.end() ? std::optional<int32_t>() : found->second.id;
}

std::vector<std::string> Adapters::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, loaded] : loaded_) names.push_back(name);
  return names;
}

// A path below the folder of adapters, with links resolved.
Result<std::string> Adapters::folder_of(const std::string& name, const std::string& path) const {
  namespace fs = std::filesystem;
  if (folder_.empty())
    return wrong_adapter("lora_path", "a server with --adapter-folder", "this one has none");
  if (name.empty() || find(name))
    return wrong_adapter("lora_name", "a name that is not in use", "it is " + quote(name));
  if (path.find('\0') != std::string::npos || path.empty())
    return wrong_adapter("lora_path", "a folder's name", "it is another text");
  std::error_code failure;
  const fs::path root = fs::canonical(folder_, failure);
  const fs::path asked = failure ? fs::path() : fs::canonical(root / path, failure);
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), asked.begin(), asked.end());
  // The same answer for all other paths: a client must not learn which files exist.
  if (failure || end != root.end() || asked == root)
    return wrong_adapter("lora_path", "a folder inside the folder of adapters",
                         quote(path) + " is none");
  return asked.string();
}

void Adapters::load(const std::string& name, const std::string& path, const ModelOptions& options,
                    const std::string& checkpoint, Engine& engine,
                    std::function<void(const Status&)> done) {
  const Result<std::string> folder = folder_of(name, path);
  if (!folder) return done(folder.error());
  const auto work = [this, name, folder = *folder, options, checkpoint](
                        Leader& model, AdapterSlots& slots) -> Status {
    std::map<std::string, Loaded> all;
    {
      const std::lock_guard lock(mutex_);
      all = loaded_;
      if (!all.try_emplace(name, Loaded{next_id_, folder}).second)
        return wrong_adapter("lora_name", "a name that is not in use", "it is " + quote(name));
    }
    ModelOptions with = options;
    with.adapters.clear();
    AdapterSlots fresh_slots;
    for (const auto& [each, loaded] : all) {
      fresh_slots[loaded.id] = static_cast<int32_t>(with.adapters.size());
      with.adapters.push_back(loaded.folder);
    }
    MORACLE_CHECK(model.load_again(checkpoint, with));
    slots = std::move(fresh_slots);
    const std::lock_guard lock(mutex_);
    loaded_ = std::move(all);
    ++next_id_;
    return {};
  };
  engine.change(work, std::move(done));
}

Status Adapters::unload(const std::string& name, Engine& engine) {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(name);
  if (found == loaded_.end())
    return wrong_adapter("lora_name", "an adapter", quote(name) + " is unknown");
  engine.retire_adapter(found->second.id);
  loaded_.erase(found);
  return {};
}

}  // namespace moracle::serve
