// Writes a checkpoint as GGUF: plans every tensor, creates the file, opens it with the reader, and
// then writes the weights to where the opened file reads them.
#include <algorithm>
#include <filesystem>

#include "base/small_file.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/translate_tensors.h"
#include "checkpoint/online/online.h"
#include "checkpoint/state.h"
#include "checkpoint/write/partial_folder.h"
#include "models/gguf/gguf_plan.h"
#include "models/gguf/gguf_types.h"
#include "models/gguf/same_model.h"
#include "models/gguf/store_rows.h"
#include "moracle/model.h"
#include "text/gguf/write_gguf_text.h"

namespace moracle {
namespace write_gguf_file {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkWeights = 1 << 22;

// llama.cpp's general.file_type: the type of most matrices. It is for display only.
int64_t file_type(DType type) {
  constexpr std::pair<DType, int64_t> kNumbers[] = {
      {DType::kF16, 1},  {DType::kQ4_0, 2},  {DType::kQ8_0, 7},       {DType::kQ4K, 14},
      {DType::kQ6K, 18}, {DType::kBF16, 32}, {DType::kMxfp4Block, 38}};
  for (const auto& [one, number] : kNumbers) {
    if (one == type) return number;
  }
  return 0;  // f32
}

Error misplaced(const std::string& file, const char* need, std::string fact) {
  return {ErrorKind::kInvalidArgument, file, "", need, std::move(fact)};
}

// The path to write to. Follows a link to a file.
Result<fs::path> output_path(const std::string& file) {
  constexpr std::string_view kEnding = ".gguf";
  if (!file.ends_with(kEnding) || file.size() == kEnding.size())
    return misplaced(file, "a file name that ends with .gguf", "it has another one");
  std::error_code why;
  const fs::path path = fs::weakly_canonical(fs::absolute(file, why), why);
  if (why) return misplaced(file, "a valid path", why.message());
  if (!is_replaceable(path.string()))
    return misplaced(file, "a new file, or one to replace", "it is no regular file");
  if (fs::exists(path, why) && !is_gguf(path.string()))
    return misplaced(file, "a new file, or a GGUF file to replace", "it is another file");
  if (!fs::is_directory(path.parent_path(), why))
    return misplaced(file, "an existing parent folder",
                     path.parent_path().string() + " does not exist");
  return path;
}

class Writer {
 public:
  Writer(const Checkpoint& from, const Description& description, GgufPlan& plan,
         const Progress& progress)
      : from_(from), description_(description), plan_(plan), progress_(progress) {}

  Status write(const fs::path& path) {
    MORACLE_TRY(const PartialFolder partial, PartialFolder::beside(path.string()));
    const std::string unfinished = partial.path() + "/" + path.filename().string();
    std::vector<GgufEntry> entries;
    for (const GgufTensorPlan& tensor : plan_.tensors) entries.push_back(tensor.entry);
    MORACLE_TRY(RangedFile file, create_gguf(unfinished, plan_.metadata, entries));
    file_ = &file;
    MORACLE_CHECK(write_all(unfinished));
    MORACLE_CHECK(advance(0));
    MORACLE_CHECK(file.finish());
    plan_.report.bytes_after = file.file_bytes();
    std::error_code why;
    fs::rename(unfinished, path, why);
    if (why) return Error{ErrorKind::kIo, path.string(), "", "to be replaced", why.message()};
    return {};
  }

 private:
  Status write_all(const std::string& unfinished) {
    // Write first the tensors that Checkpoint::open reads.
    for (const GgufTensorPlan& tensor : plan_.tensors) {
      if (is_own(tensor)) MORACLE_CHECK(write_rows(tensor, tensor.entry.name, {}));
    }
    MORACLE_TRY(const Checkpoint written, as_read(Checkpoint::open(unfinished)));
    // Write the tensors that describe() reads: norms, biases.
    MORACLE_CHECK(write_sources(written, true));
    MORACLE_TRY(const Description described, as_read(describe(written)));
    MORACLE_CHECK(
        check_same_model(description_, described, plan_.gguf->architecture, from_.folder()));
    MORACLE_CHECK(write_sources(written, false));
    for (size_t layer = 0; layer < description_.layers.size(); ++layer)
      MORACLE_CHECK(write_experts(static_cast<int64_t>(layer)));
    return {};
  }

  // An error in reading the written file means that the architecture cannot express the checkpoint.
  template <class T>
  Result<T> as_read(Result<T> read) const {
    if (read || read.error().kind == ErrorKind::kIo) return read;
    const Error& why = read.error();
    return Error{ErrorKind::kUnsupported, from_.folder(), "",
                 str("a model that GGUF files of ", plan_.gguf->architecture, " describe"),
                 str("reading the file: ", why.place, ": needs ", why.need, "; ", why.fact)};
  }

  static bool is_own(const GgufTensorPlan& tensor) {
    return tensor.sources.size() == 1 && tensor.sources[0] == tensor.entry.name;
  }

  // Includes columns of heads: ssm_a.
  static bool is_vector(const GgufEntry& entry) {
    return entry.shape.size() == 1 || !entry.name.ends_with(".weight");
  }

  Status write_sources(const Checkpoint& written, bool vectors) {
    const auto& opened = written.state().tensors.all();
    for (const GgufTensorPlan& tensor : plan_.tensors) {
      if (is_own(tensor) || is_vector(tensor.entry) != vectors) continue;
      for (const std::string& name : tensor.sources) {
        const auto at = opened.find(name);
        if (at == opened.end() || at->second.stored != tensor.entry.name) {
          return Error{ErrorKind::kUnsupported, from_.folder(), "tensor '" + name + "'",
                       str("to be read from '", tensor.entry.name, "' of a GGUF file"),
                       "it would be read from another tensor"};
        }
        MORACLE_CHECK(write_rows(tensor, name, &at->second));
      }
    }
    return {};
  }

  // Writes the rows of a source to where `to` reads them; null: in order.
  Status write_rows(const GgufTensorPlan& tensor, const std::string& name,
                    const Tensors::Entry* to) {
    const Tensors::Entry& source = plan_.sources.at(name);
    const int64_t all = source.view.num_elements();
    const DType type = tensor.entry.dtype;
    const bool reordered = to != nullptr && to->row != nullptr;
    // Treat the values of a vector as rows only if their order differs.
    const bool vector = source.view.shape.size() <= 1;
    const int64_t rows = vector ? (reordered ? all : 1) : source.view.shape[0];
    const int64_t columns = all / rows, bytes = row_bytes(type, columns);
    const int64_t first_byte = to == nullptr ? 0 : to->first_byte;
    const auto match = to == nullptr ? std::nullopt : find_gguf_name(*plan_.gguf, name);
    const int64_t step = std::max<int64_t>(1, kChunkWeights / columns);
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row);
      MORACLE_TRY(const TensorData data,
                  from_.state().tensors.read(shown(name, source), source, row * columns,
                                             count * columns, pool_));
      std::vector<float> values =
          widen_values(data.view.data, data.view.dtype, count * columns, pool_);
      if (match && match->table_entry->restore != nullptr) match->table_entry->restore(values);
      MORACLE_TRY(const std::vector<std::byte> stored,
                  in_tensor(name, store_rows(values.data(), count, columns, type, pool_)));
      const std::span<const std::byte> chunk(stored);
      if (!reordered) {
        MORACLE_CHECK(file_->write(tensor.entry.name, chunk, first_byte + row * bytes));
      }
      for (int64_t r = 0; reordered && r < count; ++r) {
        MORACLE_CHECK(file_->write(tensor.entry.name, chunk.subspan(r * bytes, bytes),
                                   first_byte + to->row(row + r) * bytes));
      }
      MORACLE_CHECK(advance(static_cast<int64_t>(data.view.num_bytes())));
    }
    return {};
  }

  static const std::string& shown(const std::string& name, const Tensors::Entry& source) {
    return source.stored.empty() ? name : source.stored;
  }

  Status write_experts(int64_t layer) {
    const LayerDescription& described = description_.layers[static_cast<size_t>(layer)];
    if (!described.router) return {};
    for (const bool down : {false, true}) {
      const DescribedMatrix& matrix = down ? described.mlp->w2 : described.mlp->w13;
      for (int64_t e = 0; e < matrix.num_experts(); ++e) {
        MORACLE_TRY(const CanonicalMatrix expert, matrix.expert(e, pool_));
        const std::vector<float> values =
            widen_values(expert.codes.data(), expert.key.dtype, expert.n * expert.k, pool_);
        for (const GgufTensorPlan& tensor : plan_.tensors) {
          if (!tensor.experts || tensor.experts->layer != layer ||
              (tensor.experts->role == ExpertRole::kDown) != down)
            continue;
          MORACLE_CHECK(write_expert(tensor, e, expert, values));
        }
        MORACLE_CHECK(advance(static_cast<int64_t>(expert.codes.size())));
      }
    }
    return {};
  }

  Status write_expert(const GgufTensorPlan& tensor, int64_t e, const CanonicalMatrix& expert,
                      const std::vector<float>& values) {
    const auto& [layer, role, bias] = *tensor.experts;
    const std::vector<int64_t>& shape = tensor.entry.shape;
    const int64_t rows = shape[1], columns = bias ? 1 : shape[2];
    const int64_t first = role == ExpertRole::kUp ? expert.n - rows : 0;  // gate rows come first
    const float* const from = (bias ? expert.bias.data() : values.data()) + first * columns;
    const DType type = tensor.entry.dtype;
    MORACLE_TRY(const std::vector<std::byte> stored,
                in_tensor(str(tensor.entry.name, ", expert ", e),
                          store_rows(from, rows, columns, type, pool_)));
    return file_->write(tensor.entry.name, stored, e * static_cast<int64_t>(stored.size()));
  }

  Result<std::vector<std::byte>> in_tensor(const std::string& name,
                                           Result<std::vector<std::byte>> stored) const {
    if (stored) return stored;
    Error error = stored.error();
    error.file = from_.folder();
    error.place = str("tensor '", name, "', ", error.place);
    return error;
  }

  Status advance(int64_t bytes) {
    done_ = std::min(done_ + bytes, plan_.report.bytes_before);
    if (!progress_ || progress_(done_, plan_.report.bytes_before)) return {};
    return Error{ErrorKind::kCancelled, from_.folder(), "writing GGUF", "", "stopped on request"};
  }

  const Checkpoint& from_;
  const Description& description_;
  GgufPlan& plan_;
  const Progress& progress_;
  RangedFile* file_ = nullptr;
  ThreadPool pool_;  // uses all CPUs that the process may use
  int64_t done_ = 0;
};

// Keys of every architecture.
Status add_general(const Checkpoint& from, GgufPlan& plan) {
  plan.metadata["general.type"] = "model";
  plan.metadata["general.quantization_version"] = 2;
  plan.metadata["general.file_type"] = file_type(plan.report.types.front().type);
  MORACLE_TRY(const GenerationConfig generation, GenerationConfig::open(from));
  const auto vocab_size = plan.metadata[str(plan.gguf->architecture, ".vocab_size")].get<int64_t>();
  MORACLE_TRY(WrittenGgufText text, write_gguf_text(from.folder(), vocab_size, generation.eos_ids));
  plan.metadata.update(text.metadata);
  for (std::string& one : text.left_out) plan.report.left_out.push_back(std::move(one));
  return {};
}

}  // namespace
}  // namespace write_gguf_file

Result<GgufReport> write_gguf(const Checkpoint& from, const GgufTypes& types,
                              const std::string& file, const Progress& progress) {
  using namespace write_gguf_file;
  if (from.state().gguf) {
    return Error{ErrorKind::kUnsupported, from.folder(), "quantize",
                 "a folder with config.json and safetensors", "it is a model in GGUF"};
  }
  MORACLE_TRY(const fs::path path, output_path(file));
  MORACLE_CHECK(check_plain(from));
  MORACLE_TRY(const Description description, describe(from));
  MORACLE_TRY(GgufPlan plan, plan_gguf(from, description, types));
  MORACLE_CHECK(add_general(from, plan));
  MORACLE_CHECK(Writer(from, description, plan, progress).write(path));
  return std::move(plan.report);
}

}  // namespace moracle
