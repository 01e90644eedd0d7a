// Quantizes a checkpoint into another folder. First plans every tensor, then writes the shards one
// after another, one module at a time.
#include <algorithm>
#include <set>

#include "base/json/json_text.h"
#include "base/json/non_finite_json.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/online/online.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/state.h"
#include "checkpoint/write/output_folder.h"
#include "checkpoint/write/stored_form.h"
#include "moracle/checkpoint.h"
#include "quant/quantize_weight.h"

namespace moracle {
namespace {

// The content of the new file for one old tensor: a copy, or a module's codes and scales.
struct PlannedTensor {
  std::string tensor;
  std::string module;
  std::optional<Scheme> scheme;  // nullopt: copied
  std::vector<SafetensorsEntry> entries;
};

class Quantizer {
 public:
  Quantizer(const Checkpoint& from, const QuantizeOptions& options, WriteFormat format)
      : from_(from), tensors_(from.state().tensors), options_(options), format_(format) {}

  Status plan(const QuantizationMap& map);
  Status write(const std::string& folder);
  Result<QuantizeReport> finish() && { return std::move(report_); }

 private:
  Status plan_module(const LinearModule& module, const Scheme& scheme);
  Status write_shard(const std::vector<size_t>& indices, const std::string& path);
  Status copy(const PlannedTensor& planned, SafetensorsWriter& writer);
  Status quantize(const PlannedTensor& planned, SafetensorsWriter& writer);
  Status write_index(OutputFolder& out, const std::vector<std::vector<size_t>>& shards);
  Status write_configs(OutputFolder& out);
  Status advance(int64_t bytes);

  const Checkpoint& from_;
  const Tensors& tensors_;
  const QuantizeOptions& options_;
  WriteFormat format_;
  std::vector<PlannedTensor> planned_;
  std::vector<StoredModule> modules_;
  QuantizeReport report_;
  ThreadPool pool_;  // uses all CPUs that the process may use
  int64_t done_ = 0;
};

Status Quantizer::plan_module(const LinearModule& module, const Scheme& scheme) {
  const std::string& file = tensors_.file_of(module.tensor);
  if (module.fused) {
    return Error{ErrorKind::kUnsupported, file, "tensor '" + module.tensor + "'",
                 str("one tensor per expert, because readers of ", name(format_),
                     " expect that (exclude these experts with '", module.name,
                     "=none', or quantize at load)"),
                 "it has all experts of a layer"};
  }
  if (Status stores = check_stores(format_, scheme); !stores) return stores;
  const TensorView& view = *tensors_.find(module.tensor);
  auto entries = stored_entries(format_, scheme, module.name, view.shape[0], view.shape[1]);
  if (!entries) {
    Error error = entries.error();
    error.file = file;
    return error;
  }
  for (const SafetensorsEntry& entry : *entries) {
    if (entry.name != module.tensor && tensors_.find(entry.name) != nullptr)
      return tensors_.wrong(entry.name, "another name",
                            "module '" + module.name + "' would be written under this name");
  }
  planned_.push_back({module.tensor, module.name, scheme, *std::move(entries)});
  const bool is_new =
      std::find(report_.schemes.begin(), report_.schemes.end(), scheme) == report_.schemes.end();
  if (is_new) report_.schemes.push_back(scheme);
  ++report_.num_quantized;
  return {};
}

Status Quantizer::plan(const QuantizationMap& map) {
  MORACLE_CHECK(check_plain(from_));  // a file has one quantization config
  MORACLE_TRY(const OnlineChoice choice, OnlineChoice::make(from_, map));
  std::set<std::string> quantized;
  for (size_t i = 0; i < choice.modules().size(); ++i) {
    const LinearModule& module = choice.modules()[i];
    const std::optional<Scheme> scheme = choice.scheme(i);
    modules_.push_back({module.name, scheme, module.fused});
    if (!scheme) continue;
    MORACLE_CHECK(plan_module(module, *scheme));
    quantized.insert(module.tensor);
  }
  if (quantized.empty()) {
    return Error{ErrorKind::kInvalidArgument, from_.folder(), "quantization",
                 "at least one module to quantize", "no module would be quantized"};
  }
  for (const auto& [tensor, entry] : tensors_.all()) {
    if (quantized.contains(tensor)) continue;
    planned_.push_back({tensor, "", {}, {{tensor, entry.view.dtype, entry.view.shape}}});
    ++report_.num_left;
  }
  std::sort(planned_.begin(), planned_.end(),
            [](const PlannedTensor& a, const PlannedTensor& b) { return a.tensor < b.tensor; });
  report_.bytes_before = from_.total_bytes();
  for (const PlannedTensor& planned : planned_) {
    for (const SafetensorsEntry& entry : planned.entries) report_.bytes_after += entry.bytes();
  }
  return {};
}

Status Quantizer::advance(int64_t bytes) {
  done_ += bytes;
  if (!options_.progress || options_.progress(done_, report_.bytes_before)) return {};
  return Error{ErrorKind::kCancelled, from_.folder(), "quantizing", "", "stopped on request"};
}

Status Quantizer::copy(const PlannedTensor& planned, SafetensorsWriter& writer) {
  const TensorView& view = *tensors_.find(planned.tensor);
  const int64_t size = bits(view.dtype) / 8, all = view.num_elements();
  const int64_t step = (int64_t{16} << 20) / size;
  for (int64_t first = 0; first < all; first += step) {
    MORACLE_TRY(const TensorData slice,
                tensors_.read(planned.tensor, first, std::min(step, all - first), pool_));
    const std::span<const std::byte> bytes{slice.view.data, slice.view.num_bytes()};
    MORACLE_CHECK(writer.write(planned.tensor, bytes, first * size));
    MORACLE_CHECK(advance(static_cast<int64_t>(bytes.size())));
  }
  return {};
}

Status Quantizer::quantize(const PlannedTensor& planned, SafetensorsWriter& writer) {
  MORACLE_TRY(TensorData stored, tensors_.read(planned.tensor, pool_));
  const std::vector<int64_t>& shape = stored.view.shape;
  const auto source_bytes = static_cast<int64_t>(stored.view.num_bytes());
  CanonicalMatrix floats =
      matrix_of({.n = shape[0], .k = shape[1], .key = QuantKey{stored.view.dtype}});
  set_codes(floats, std::move(stored));
  Result<CanonicalMatrix> matrix = quantize_weight(floats, planned.scheme->weight, pool_);
  if (!matrix) {
    Error error = matrix.error();
    error.file = tensors_.file_of(planned.tensor);
    error.place = "tensor '" + planned.tensor + "'";
    return error;
  }
  floats = {};
  const auto bytes = stored_bytes(*planned.scheme, *std::move(matrix));
  for (size_t i = 0; i < bytes.size(); ++i)
    MORACLE_CHECK(writer.write(planned.entries[i].name, bytes[i]));
  return advance(source_bytes);
}

Status Quantizer::write_shard(const std::vector<size_t>& indices, const std::string& path) {
  std::vector<SafetensorsEntry> entries;
  for (const size_t u : indices)
    entries.insert(entries.end(), planned_[u].entries.begin(), planned_[u].entries.end());
  MORACLE_TRY(SafetensorsWriter writer, SafetensorsWriter::create(path, std::move(entries)));
  for (const size_t u : indices)
    MORACLE_CHECK(planned_[u].scheme ? quantize(planned_[u], writer) : copy(planned_[u], writer));
  return writer.finish();
}

Status Quantizer::write_index(OutputFolder& out, const std::vector<std::vector<size_t>>& shards) {
  std::map<std::string, std::string> files;
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const size_t u : shards[s]) {
      for (const SafetensorsEntry& entry : planned_[u].entries)
        files[entry.name] = shard_name(s, shards.size());
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", report_.bytes_after}}},
                                        {"weight_map", files}};
  return out.write("model.safetensors.index.json", index.dump(2) + "\n");
}

Status Quantizer::write_configs(OutputFolder& out) {
  const std::string path = from_.folder() + "/config.json";
  MORACLE_TRY(const std::string text, read_small_file(path));
  MORACLE_CHECK(check_json_text(text, path));
  // Parse again to keep the order of the keys.
  auto config =
      nlohmann::ordered_json::parse(quote_non_finite(text), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return Error{ErrorKind::kBadFile, path, "", "a JSON object",
                 "it is not an object: the file changed while quantize was running"};
  }
  config["quantization_config"] = quantization_config(format_, modules_);
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  MORACLE_CHECK(
      out.write("config.json", unquote_non_finite(config.dump(2, ' ', false, kReplace)) + "\n"));
  if (format_ != WriteFormat::kModelOpt) return {};
  const auto& written = config["quantization_config"];
  const nlohmann::ordered_json beside = {{"producer", written["producer"]},
                                         {"quantization",
                                          {{"quant_algo", written["quant_algo"]},
                                           {"kv_cache_quant_algo", nullptr},
                                           {"group_size", 32},
                                           {"exclude_modules", written["ignore"]}}}};
  return out.write("hf_quant_config.json", beside.dump(4) + "\n");
}

Status Quantizer::write(const std::string& folder) {
  MORACLE_TRY(OutputFolder out, OutputFolder::create(folder, from_.folder()));
  std::vector<int64_t> bytes;
  for (const PlannedTensor& planned : planned_) {
    bytes.push_back(0);
    for (const SafetensorsEntry& entry : planned.entries) bytes.back() += entry.bytes();
  }
  const auto shards = plan_shards(bytes, options_.max_shard_bytes);
  MORACLE_CHECK(out.copy_rest(from_.folder()));
  MORACLE_CHECK(write_configs(out));
  for (size_t s = 0; s < shards.size(); ++s) {
    report_.files.push_back(shard_name(s, shards.size()));
    MORACLE_CHECK(write_shard(shards[s], out.path() + "/" + report_.files.back()));
  }
  if (shards.size() > 1) MORACLE_CHECK(write_index(out, shards));
  MORACLE_CHECK(advance(0));
  return out.keep();
}

}  // namespace

Result<QuantizeReport> quantize(const Checkpoint& from, const QuantizationMap& map,
                                const std::string& folder, const QuantizeOptions& options) {
  MORACLE_TRY(const WriteFormat format, parse_write_format(options.format));
  if (options.max_shard_bytes < 1) {
    return Error{ErrorKind::kInvalidArgument, "", "max_shard_bytes", "at least 1 byte",
                 str("it is ", options.max_shard_bytes)};
  }
  if (from.state().gguf) {
    return Error{ErrorKind::kUnsupported, from.folder(), "quantize",
                 "a folder with config.json and safetensors", "it is a model in GGUF"};
  }
  Quantizer quantizer(from, options, format);
  MORACLE_CHECK(quantizer.plan(map));
  MORACLE_CHECK(quantizer.write(folder));
  return std::move(quantizer).finish();
}

}  // namespace moracle
