#include "serve/model_set/running_model.h"

#include <algorithm>

#include "base/try.h"

namespace moracle::serve {

Result<std::unique_ptr<RunningModel>> RunningModel::start(Model& model, ServedModel served,
                                                          const RunningOptions& options,
                                                          SharedState& shared) {
  served.options.read_adapters.clear();  // `adapters` owns them until they are unloaded
  served.vocab_size = model.vocab_size();
  served.max_context = model.max_context();
  served.excluded_ids = served.tokenizer.ids_without_token(model.vocab_size());
  std::vector<int32_t> tag_ids;
  const auto add_tags = [&](const std::vector<int32_t>& ids) {
    const std::vector<int32_t>& stops = served.generation.eos_ids;
    for (const int32_t id : ids) {
      if (std::find(stops.begin(), stops.end(), id) == stops.end()) tag_ids.push_back(id);
    }
  };
  if (served.dialect.format) add_tags(special_tags(*served.dialect.format, served.tokenizer));
  if (served.reasoning) add_tags(special_ids(served.reasoning->tags, served.tokenizer));
  auto grammars = GrammarEngine::start(served.tokenizer, served.vocab_size,
                                       served.generation.eos_ids, options.grammar_folder, tag_ids);
  if (!grammars && !options.grammar_folder.empty()) return grammars.error();
  if (grammars)
    served.grammars = *std::move(grammars);
  else
    served.no_grammars = grammars.error().to_string();
  std::unique_ptr<RunningModel> running(new RunningModel(std::move(served)));
  EngineOptions engine = options.engine;
  engine.num_adapters = static_cast<int32_t>(running->served_.adapters->names().size());
  engine.overlaps_answers = model.device().platform() != Platform::kCpu;
  engine.rebalance.folder = running->served_.folder;
  engine.flush = [events = &shared.events] { events->flush(); };
  MORACLE_TRY(running->engine_, Engine::start(model, running->served_.tokenizer, engine));
  running->api_ = std::make_unique<ModelApi>(running->served_, *running->engine_, shared);
  return running;
}

RunningModel::~RunningModel() {
  stop();
}

void RunningModel::stop() {
  if (api_) api_->stop_compiling();
  if (engine_) engine_->stop();
}

}  // namespace moracle::serve
