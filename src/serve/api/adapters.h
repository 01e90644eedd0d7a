// The adapters that requests can name. They may be loaded and unloaded while the server runs.
#pragma once

#include <mutex>
#include <optional>

#include "serve/engine/engine.h"

namespace moracle::serve {

/// Safe to share between threads.
class Adapters {
 public:
  /// Requests may load adapters below `folder` only. Empty: none.
  explicit Adapters(std::string folder = {}) : folder_(std::move(folder)) {}

  /// Adds an adapter that the model has; call in the order of ModelOptions::read_adapters. Errors:
  /// a name that is in use, too long, or not printable.
  Status add(const std::string& name, std::shared_ptr<const LoraAdapter> adapter);
  /// The number that a Job carries. Numbers are never used twice.
  std::optional<int32_t> find(const std::string& name) const;
  std::vector<std::string> names() const;

  /// Loads the model once more with one more adapter, and replaces it between two steps. Memory
  /// holds it twice meanwhile. The other adapters are not read again. `path` is relative to the
  /// folder of adapters. `done` gets the errors of load_again; the old model then stays in use.
  void load(const std::string& name, const std::string& path, const ModelOptions& options,
            const std::string& checkpoint, Engine& engine, std::function<void(const Status&)> done);
  /// Ends the use of a name, as Engine::retire_adapter. Errors: an unknown name.
  Status unload(const std::string& name, Engine& engine);

 private:
  struct Loaded {
    int32_t id;
    std::shared_ptr<const LoraAdapter> adapter;
  };
  // With links resolved.
  struct Place {
    std::string root, folder;
  };
  Result<Place> place_of(const std::string& path) const;
  Status check_name(const std::string& name) const;

  const std::string folder_;
  mutable std::mutex mutex_;
  std::map<std::string, Loaded> loaded_;
  int32_t next_id_ = 0;
};

}  // namespace moracle::serve
