#include "checkpoint/lora/gguf_adapter.h"

#include <unordered_map>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/state.h"

namespace moracle {
namespace gguf_adapter {
namespace {

constexpr std::string_view kA = ".lora_a", kB = ".lora_b", kWeight = ".weight";

// Gives A and B the names of the modules that the checkpoint reads from their matrix.
class Translation {
 public:
  Translation(const Tensors& stored, const Checkpoint& checkpoint)
      : stored_(stored), base_(checkpoint.state().tensors), config_(checkpoint.state().config) {
    for (const auto& [name, entry] : base_.all())
      readers_[entry.stored.empty() ? name : entry.stored].emplace_back(name, &entry);
  }

  Result<std::map<std::string, Tensors::Entry>> run() {
    for (const auto& [name, entry] : stored_.all()) {
      const std::string base = name.substr(0, name.size() - std::min(name.size(), kA.size()));
      const bool is_a = name.ends_with(kA);
      if (!is_a && !name.ends_with(kB))
        return unsupported(name, "a tensor .lora_a or .lora_b", "it is neither");
      const std::string other = str(base, is_a ? kB : kA);
      if (stored_.find(other) == nullptr)
        return stored_.wrong(name, str("'", other, "' beside it"), "the file has none");
      if (is_a) MORACLE_CHECK(add_pair(base));
    }
    return std::move(to_);
  }

 private:
  Error unsupported(const std::string& tensor, std::string need, std::string fact) const {
    return {ErrorKind::kUnsupported, stored_.file_of(tensor), "tensor '" + tensor + "'",
            std::move(need), std::move(fact)};
  }

  Status add_pair(const std::string& base) {
    const std::string a_name = str(base, kA), b_name = str(base, kB);
    const auto readers = readers_.find(base);
    if (readers == readers_.end())
      return unsupported(a_name, str("'", base, "' in the checkpoint"), "it has none");
    const TensorFile& file = base_.files()[readers->second[0].second->file];
    const TensorView& matrix = file.tensors().at(base).view;
    if (matrix.shape.empty() || matrix.num_elements() == 0)
      return unsupported(a_name, str("a matrix '", base, "'"), "it is " + to_string(matrix));
    std::vector<int64_t> shape = matrix.shape;
    if (shape.size() == 1) shape.insert(shape.begin(), 1);  // the gate of a shared expert
    const TensorView &a = *stored_.find(a_name), &b = *stored_.find(b_name);
    const size_t rows_at = shape.size() - 2;
    const int64_t rank = a.shape.size() == shape.size() ? a.shape[rows_at] : 0;
    std::vector<int64_t> a_shape = shape, b_shape = shape;
    a_shape[rows_at] = b_shape[rows_at + 1] = rank;
    if (rank < 1 || a.shape != a_shape) {
      return stored_.wrong(
          a_name,
          str("shape [", rows_at == 0 ? "" : str(shape[0], ", "), "rank, ", shape.back(), "]"),
          "it is " + to_string(a));
    }
    if (b.shape != b_shape)
      return stored_.wrong(b_name, str("shape [", join(b_shape), "]"), "it is " + to_string(b));
    for (const auto& [name, entry] : readers->second)
      MORACLE_CHECK(add_module(name, *entry, a_name, b_name, shape[rows_at], rank));
    return {};
  }

  // `all_rows`: rows of the stored matrix, of one expert.
  Status add_module(const std::string& name, const Tensors::Entry& entry, const std::string& a_name,
                    const std::string& b_name, int64_t all_rows, int64_t rank) {
    const std::string module = name.substr(0, name.size() - kWeight.size());
    const bool interleaved = config_.find({"linear_value_heads_interleaved"}) != nullptr &&
                             module.ends_with(".linear_attn.out_proj");
    if (!name.ends_with(kWeight) || entry.make || entry.change != nullptr || interleaved)
      return unsupported(a_name, "a matrix that is read as stored", str("'", name, "' is not"));
    const int64_t k = entry.view.shape.back(), n = entry.view.num_elements() / k;
    const int64_t first_row = entry.first_byte / row_bytes(entry.view.dtype, k);
    const DType a_type = stored_.find(a_name)->dtype, b_type = stored_.find(b_name)->dtype;
    Tensors::Entry a, b;
    a.view = {nullptr, a_type, {rank, k}};
    a.stored = a_name;
    a.first_byte = first_row / all_rows * rank * row_bytes(a_type, k);
    b.view = {nullptr, b_type, {n, rank}};
    b.stored = b_name;
    b.first_byte = first_row * row_bytes(b_type, rank);
    b.row = entry.row;
    const std::string peft = "base_model.model." + module;
    to_.insert_or_assign(peft + ".lora_A.weight", std::move(a));
    to_.insert_or_assign(peft + ".lora_B.weight", std::move(b));
    return {};
  }

  const Tensors &stored_, &base_;
  const Config& config_;
  // By a tensor of the model's file: what the checkpoint reads from it.
  std::unordered_map<std::string, std::vector<std::pair<std::string, const Tensors::Entry*>>>
      readers_;
  std::map<std::string, Tensors::Entry> to_;
};

Status check_architecture(const Config& metadata, const Checkpoint& checkpoint) {
  const std::optional<Config>& model = checkpoint.state().gguf;
  if (!model) {
    return Error{ErrorKind::kUnsupported, metadata.path(), "",
                 "a checkpoint in GGUF, whose order of rows the adapter has (with other "
                 "checkpoints, give the folder that PEFT wrote)",
                 "the checkpoint is " + checkpoint.state().folder};
  }
  MORACLE_TRY(const std::string own, metadata.text({"general.architecture"}));
  MORACLE_TRY(const std::string need, model->text({"general.architecture"}));
  if (own == need) return {};
  return metadata.unsupported({"general.architecture"}, need + ", as the checkpoint",
                              "it is " + own);
}

}  // namespace
}  // namespace gguf_adapter

Result<GgufAdapter> open_gguf_adapter(const std::string& path, const Checkpoint& checkpoint) {
  MORACLE_TRY(GgufFile file, GgufFile::open(path));
  const Config metadata = Config::from(std::move(file.metadata), path);
  MORACLE_TRY(LoraSettings settings, LoraSettings::read_gguf(metadata));
  MORACLE_CHECK(gguf_adapter::check_architecture(metadata, checkpoint));
  std::vector<TensorFile> files;
  files.push_back(std::move(file.file));
  MORACLE_TRY(Tensors stored, Tensors::from(std::move(files)));
  MORACLE_TRY(auto entries, gguf_adapter::Translation(stored, checkpoint).run());
  return GgufAdapter{std::move(settings),
                     Tensors::from(std::move(stored).take_files(), std::move(entries),
                                   [](const std::string&) { return std::string(); })};
}

}  // namespace moracle
