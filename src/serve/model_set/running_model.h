// A model in memory with its engine.
#pragma once

#include "serve/api/model_api.h"

namespace moracle::serve {

struct RunningOptions {
  /// Folder with the grammar engine's Python packages; empty: the build's folder, if it exists.
  std::string grammar_folder;
  EngineOptions engine;
};

class RunningModel {
 public:
  /// Starts the engine. `model` and `shared` must outlive it. Errors: those of Engine::start; of
  /// GrammarEngine::start if a folder is given.
  static Result<std::unique_ptr<RunningModel>> start(Model& model, ServedModel served,
                                                     const RunningOptions& options,
                                                     SharedState& shared);
  /// Unfinished requests get status 503.
  ~RunningModel();

  ModelApi& api() { return *api_; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const ServedModel& served() const { return served_; }
  /// Stops the threads. Their last replies are still being sent.
  void stop();

 private:
  explicit RunningModel(ServedModel served) : served_(std::move(served)) {}

  const ServedModel served_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ModelApi> api_;
};

}  // namespace moracle::serve
