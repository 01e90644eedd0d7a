#include "published/answers.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "models/explain.h"
#include "moracle/model.h"
#include "moracle/oracle.h"
#include "published/tensor_names.h"

namespace moracle::published {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = "_config.json", kBeside = "_hf_quant_config.json";
constexpr const char* kMachines[] = {"h200", "xeon-amx", "desktop-avx2"};

// Nemotron's config.json has Infinity, as Python writes it. The value does not matter here.
Json parse(std::string text) {
  for (size_t at; (at = text.find("Infinity")) != text.npos;) text.replace(at, 8, "1e300");
  return Json::parse(text);
}

// The quantization config of a published model: in config.json, in its text_config, or in a file
// beside it.
Json quantization_of(const Json& config, const std::string& beside) {
  for (const Json* part :
       {&config, config.contains("text_config") ? &config["text_config"] : nullptr}) {
    if (part != nullptr && part->contains("quantization_config"))
      return (*part)["quantization_config"];
  }
  return beside.empty() ? Json() : parse(beside).at("quantization");
}

Status write_folder(const std::string& path, const std::string& folder, Answer& answer) {
  MORACLE_TRY(const std::string text, read_small_file(path));
  std::string stem = path.substr(0, path.size() - kEnding.size()), beside;
  if (const std::string file = stem + std::string(kBeside); fs::exists(file)) {
    MORACLE_TRY(beside, read_small_file(file));
    std::ofstream(folder + "/hf_quant_config.json") << beside;
  }
  std::ofstream(folder + "/config.json") << text;
  try {
    const Json config = parse(text);
    ModuleForms forms(quantization_of(config, beside));
    add_tensors(config, forms);
    answer.form = forms.name();
    answer.bytes = forms.tensors().bytes();
    return forms.tensors().write(folder + "/model.safetensors");
  } catch (const std::exception& error) {
    return Error{ErrorKind::kBadFile, path, "", "a config whose tensors are known", error.what()};
  }
}

// The fact of a message, short enough for a table cell.
std::string brief(const Error& error, const std::string& scratch, Support support) {
  std::string text = error.place == "architectures"
                         ? error.fact
                         : str(error.place, ": needs ", error.need, "; ", error.fact);
  for (size_t at; (at = text.find(scratch + "/")) != text.npos;) text.erase(at, scratch.size() + 1);
  // Drop lists of names, and what a caller of the library must supply.
  const char* const rest = support == Support::kExpertsOnly ? ", routing unknown" : ", such as ";
  return text.substr(0, text.find(rest));
}

void refuse(Answer& answer, const Error& error, const std::string& scratch, Support support) {
  answer.support = support;
  answer.kind = error.kind;
  answer.reason = brief(error, scratch, support);
}

// The described folder, shared by all machines: 100,000 tensors take half a second.
struct Described {
  const Checkpoint& checkpoint;
  const Description* whole = nullptr;  // null if only the experts can be used
  std::vector<LayerExperts> experts;   // then
};

Result<std::vector<Choice>> choices_of(const Described& described, const ModelOptions& options,
                                       const Machine& machine, std::string& not_runnable) {
  if (described.whole == nullptr) {
    MORACLE_TRY(auto modules, consider(described.experts, options, machine));
    return grouped(std::move(modules));
  }
  MORACLE_TRY(ModelExplanation explanation, explain(*described.whole, options, machine));
  not_runnable = explanation.not_runnable;
  return std::move(explanation.choices);
}

Result<Answer::Row> ask_machine(const Described& described, const Machine& machine) {
  ModelOptions options;
  if (!machine.gpus.empty()) options.device.platform = Platform::kCuda;
  std::string not_runnable;
  MORACLE_TRY(const std::vector<Choice> choices,
              choices_of(described, options, machine, not_runnable));
  std::set<std::string> backends;
  for (const Choice& choice : choices) {
    if (choice.part != "experts") continue;
    MORACLE_TRY(const Plan chosen, choice.selection.chosen());
    backends.insert(str("`", name(*chosen.backend), "`"));
  }
  Answer::Row row{machine.name, join(backends), ""};
  if (described.whole == nullptr) return row;
  const Result<ModelPlan> dry_run = plan(*described.whole, options, machine);
  if (!dry_run && dry_run.error().kind == ErrorKind::kOutOfMemory) row.lacks = "too large";
  if (!dry_run && dry_run.error().place == "device") row.lacks = "not on this device";
  if (dry_run.ok() == not_runnable.empty() && dry_run.ok() == row.lacks.empty()) return row;
  return Error{ErrorKind::kUnsupported, described.checkpoint.folder(), machine.name,
               "explain and run --dry-run to agree",
               str("explain: '", not_runnable, "', run: '",
                   dry_run ? "" : dry_run.error().to_string(), "'")};
}

}  // namespace

std::vector<std::string> published_configs(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    const std::string path = entry.path().string();
    if (path.ends_with(kEnding) && !path.ends_with(kBeside)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<Answer> ask(const std::string& config, const std::string& scratch) {
  Answer answer;
  answer.model = fs::path(config).filename().string();
  answer.model.resize(answer.model.size() - kEnding.size());
  if (const size_t at = answer.model.find("--"); at != answer.model.npos)
    answer.model.replace(at, 2, "/");
  MORACLE_CHECK(write_folder(config, scratch, answer));
  const Result<Checkpoint> checkpoint = Checkpoint::open(scratch);
  if (!checkpoint) {
    refuse(answer, checkpoint.error(), scratch, Support::kRefused);
    return answer;
  }
  const Result<Description> whole = describe(*checkpoint);
  Described described{*checkpoint, whole ? &*whole : nullptr, {}};
  if (whole) {
    MORACLE_CHECK(outline(*checkpoint, *whole));
    answer.support = Support::kRuns;
  } else {
    const bool experts = outline(*checkpoint).ok();
    refuse(answer, whole.error(), scratch, experts ? Support::kExpertsOnly : Support::kRefused);
    if (!experts) return answer;
    for (const int64_t layer : checkpoint->moe_layers()) {
      MORACLE_TRY(DescribedWeights weights, checkpoint->moe_layer(layer));
      described.experts.emplace_back(layer, std::move(weights));
    }
  }
  for (const char* name : kMachines) {
    MORACLE_TRY(const Machine machine, Machine::find(name));
    MORACLE_TRY(Answer::Row row, ask_machine(described, machine));
    answer.rows.push_back(std::move(row));
  }
  return answer;
}

std::string table_head() {
  std::string head = "| model | form | GB | support |", line = "\n| --- | --- | --- | --- |";
  for (const char* name : kMachines) {
    head += str(" ", name, " |");
    line += " --- |";
  }
  return head + line + "\n";
}

std::string table_row(const Answer& answer) {
  std::string text = str("| ", answer.model, " | ", answer.form, " | ",
                         (answer.bytes + 500'000'000) / 1'000'000'000, " | ");
  if (answer.support == Support::kRuns)
    text += "runs |";
  else
    text += str(answer.support == Support::kRefused ? "refused: " : "experts only: ", answer.reason,
                " |");
  for (size_t i = 0; i < std::size(kMachines); ++i) {
    if (answer.rows.empty()) {
      text += " |";
      continue;
    }
    const Answer::Row& row = answer.rows[i];
    // Without experts there is no row.
    const char* const comma = row.backends.empty() || row.lacks.empty() ? "" : ", ";
    text += str(" ", row.backends, comma, row.lacks, " |");
  }
  return text + "\n";
}

}  // namespace moracle::published
