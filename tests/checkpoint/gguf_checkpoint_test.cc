// Models in GGUF, opened as checkpoints: files, splits and folders, and what they lack.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/open_gguf.h"
#include "checkpoint/state.h"
#include "checkpoint/to_gguf.h"
#include "expect_error.h"
#include "models/description.h"
#include "paths.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::gguf_checkpoint_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

class GgufCheckpoint : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }
  // Writes the model and describes it.
  Result<Description> described(const GgufWriter& writer) const {
    writer.write(file("a.gguf"));
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(file("a.gguf")));
    return describe(checkpoint);
  }
  // Writes the model in parts with these numbers of tensors.
  void write_split(const std::vector<size_t>& sizes) const {
    size_t first = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      GgufWriter part;
      if (i == 0) part.metadata = model_.metadata;
      part.set("split.no", i);
      part.set("split.count", sizes.size());
      part.set("split.tensors.count", model_.tensors.size());
      const auto begin = model_.tensors.begin() + static_cast<std::ptrdiff_t>(first);
      part.tensors.assign(begin, begin + static_cast<std::ptrdiff_t>(sizes[i]));
      first += sizes[i];
      part.write(split_path(i + 1, sizes.size()));
    }
  }
  std::string split_path(size_t number, size_t count) const {
    return file(str("m-0000", number, "-of-0000", count, ".gguf"));
  }

  const SyntheticCheckpoint source_ = SyntheticCheckpoint::plain();
  const GgufWriter model_ = testing::to_gguf(source_);
  TemporaryFolder folder_;
};

TEST_F(GgufCheckpoint, HasTheNamesAndBytesOfTheSafetensors) {
  model_.write(file("a.gguf"));
  const Checkpoint checkpoint = testing::must(Checkpoint::open(file("a.gguf")));
  EXPECT_EQ(checkpoint.architecture(), "Qwen3MoeForCausalLM");
  EXPECT_EQ(checkpoint.producer(), "gguf");
  EXPECT_EQ(checkpoint.folder(), file("a.gguf"));
  EXPECT_EQ(checkpoint.num_layers(), 2);
  EXPECT_THAT(checkpoint.moe_layers(), ElementsAre(0, 1));
  for (const auto& [name, tensor] : source_.tensors) {
    ASSERT_TRUE(checkpoint.has_tensor(name)) << name;
    const TensorView view = testing::must(checkpoint.tensor(name));
    EXPECT_EQ(view.shape, tensor.shape) << name;
    const auto bytes = testing::must(checkpoint.read(name));
    EXPECT_EQ(bytes, view.dtype == DType::kF32 ? testing::widened(tensor).bytes : tensor.bytes)
        << name;
  }
  EXPECT_EQ(checkpoint.state().tensors.all().size(), source_.tensors.size());
}

TEST_F(GgufCheckpoint, ReadsMergedGateAndUp) {
  GgufWriter merged = model_;
  for (int l = 0; l < 2; ++l) {
    const auto name = [&](const char* part) {
      return str("blk.", l, ".ffn_", part, "_exps.weight");
    };
    const testing::TensorBytes gate = merged.at(name("gate")), up = merged.at(name("up"));
    testing::TensorBytes both{name("gate_up"), gate.dtype, {4, 32, 32}, {}};
    for (std::ptrdiff_t e = 0; e < 4; ++e) {
      for (const testing::TensorBytes* one : {&gate, &up}) {
        const auto from = one->bytes.begin() + e * 16 * 32 * 2;
        both.bytes.insert(both.bytes.end(), from, from + 16 * 32 * 2);
      }
    }
    merged.remove(gate.name);
    merged.remove(up.name);
    merged.tensors.push_back(both);
  }
  merged.write(file("a.gguf"));
  const Checkpoint checkpoint = testing::must(Checkpoint::open(file("a.gguf")));
  for (const auto& [name, tensor] : source_.tensors) {
    if (tensor.shape.size() != 2 || name.find("mlp.gate.") != name.npos) continue;
    EXPECT_EQ(testing::must(checkpoint.read(name)), tensor.bytes) << name;
  }
  EXPECT_TRUE(describe(checkpoint).ok());
}

// As files of Mixtral from before April 2024.
TEST_F(GgufCheckpoint, ReadsOneTensorForEachExpert) {
  GgufWriter single = model_;
  single.tensors.clear();
  for (const testing::TensorBytes& tensor : model_.tensors) {
    const size_t at = tensor.name.find("_exps.weight");
    if (at == tensor.name.npos) {
      single.tensors.push_back(tensor);
      continue;
    }
    const auto bytes = static_cast<std::ptrdiff_t>(tensor.bytes.size()) / tensor.shape[0];
    for (std::ptrdiff_t e = 0; e < tensor.shape[0]; ++e) {
      const auto first = tensor.bytes.begin() + e * bytes;
      single.tensors.push_back({str(tensor.name.substr(0, at), ".", e, ".weight"),
                                tensor.dtype,
                                {tensor.shape[1], tensor.shape[2]},
                                {first, first + bytes}});
    }
  }
  ASSERT_GT(single.tensors.size(), model_.tensors.size());
  EXPECT_TRUE(described(single).ok());
  const Checkpoint checkpoint = testing::must(Checkpoint::open(file("a.gguf")));
  for (const auto& [name, tensor] : source_.tensors) {
    if (name.find(".experts.") == name.npos) continue;
    EXPECT_EQ(testing::must(checkpoint.read(name)), tensor.bytes) << name;
  }
  single.remove("blk.1.ffn_up.2.weight");
  EXPECT_THAT(described(single).error().to_string(), HasSubstr("blk.1.ffn_up"));
}

TEST_F(GgufCheckpoint, RefusesFactorsThatDoNotFit) {
  GgufWriter more = model_;
  const auto add = [&](const std::string& name, std::vector<float> values) {
    more = model_;
    more.tensors.push_back(
        {name, DType::kF32, {static_cast<int64_t>(values.size())}, testing::bytes_of(values)});
  };
  add("blk.1.attn_q.scale", {2});  // of BF16, which llama.cpp's converter does not write
  expect_bad(described(more), {"tensor 'blk.1.attn_q.scale", "the model does not use it"});
  const std::string path = testing::golden_dir() + "/gguf/models/qwen3moe-fp4-factors.gguf";
  const GgufFile stored = testing::must(GgufFile::open(path));
  GgufWriter factors;
  for (const auto& [key, value] : stored.metadata.items())
    factors.metadata.emplace_back(key, value);
  for (const auto& [name, tensor] : stored.file.tensors()) {
    factors.tensors.push_back({name, tensor.view.dtype, tensor.view.shape, {}});
    factors.tensors.back().bytes.resize(tensor.view.num_bytes());
    testing::must(stored.file.read(name, 0, factors.tensors.back().bytes));
  }
  EXPECT_TRUE(described(factors).ok());
  const auto expect_wrong = [&](const std::string& name, const std::vector<float>& values,
                                const char* text) {
    GgufWriter changed = factors;
    changed.at(name).shape = {static_cast<int64_t>(values.size())};
    changed.at(name).bytes = testing::bytes_of(values);
    expect_bad(described(changed), {name, text});
  };
  expect_wrong("blk.0.attn_q.scale", {1, 2}, "needs one scale above 0; it has 2 elements");
  expect_wrong("blk.0.attn_q.scale", {-1}, "needs one scale above 0; it is -1");
  expect_wrong("blk.0.attn_q.scale", {NAN}, "finite");
  expect_wrong("blk.0.ffn_up_exps.scale", {1, 2, 3}, "the model does not use it");
}

TEST_F(GgufCheckpoint, OpensAFolderWithOneModel) {
  model_.write(file("a.gguf"));
  model_.write(file("mmproj-a.gguf"));
  const Checkpoint checkpoint = testing::must(Checkpoint::open(folder_.path()));
  EXPECT_EQ(checkpoint.folder(), folder_.path());
  EXPECT_THAT(checkpoint.not_used(), ElementsAre(HasSubstr("mmproj-a.gguf")));
  EXPECT_TRUE(describe(checkpoint).ok());
}

TEST_F(GgufCheckpoint, NamesTheModelsOfAFolderWithSeveral) {
  model_.write(file("b.gguf"));
  write_split({10, model_.tensors.size() - 10});
  expect_bad(Checkpoint::open(folder_.path()),
             {"one model in GGUF", "it has b.gguf, m-00001-of-00002.gguf"});
}

TEST_F(GgufCheckpoint, OpensAnyFileOfASplit) {
  write_split({10, 1, model_.tensors.size() - 11});
  for (const std::string& path :
       {split_path(1, 3), split_path(2, 3), split_path(3, 3), folder_.path()}) {
    const Checkpoint checkpoint = testing::must(Checkpoint::open(path));
    EXPECT_TRUE(describe(checkpoint).ok());
    const std::string name = "lm_head.weight";
    EXPECT_EQ(testing::must(checkpoint.read(name)), source_.tensors.at(name).bytes);
  }
}

TEST_F(GgufCheckpoint, RefusesSplitsThatDoNotFit) {
  const size_t rest = model_.tensors.size() - 10;
  write_split({10, rest});
  std::filesystem::remove(split_path(2, 2));
  expect_bad(Checkpoint::open(split_path(1, 2)), {"all of 2 files", "m-00002-of-00002.gguf"});
  std::filesystem::copy(split_path(1, 2), split_path(2, 2));
  expect_bad(Checkpoint::open(split_path(1, 2)),
             {"m-00002-of-00002.gguf: metadata 'split.no'", "1 and 2", "they are 0 and 2"});
  expect_bad(Checkpoint::open(split_path(2, 2)), {"metadata 'split.no'"});
  std::filesystem::rename(split_path(1, 2), file("one.gguf"));
  expect_bad(Checkpoint::open(file("one.gguf")),
             {"metadata 'split.count'", "model-00001-of-00002.gguf", "it is 2"});
  write_split({10, rest - 1});
  expect_bad(Checkpoint::open(split_path(1, 2)), {"metadata 'split.tensors.count'"});
}

TEST_F(GgufCheckpoint, NamesEveryMissingRequiredKey) {
  for (const auto& [key, value] : model_.metadata) {
    GgufWriter without = model_;
    without.remove_key(key);
    const Result<Description> description = described(without);
    const bool optional = key == "general.name" || key == "tokenizer.ggml.model" ||
                          key == "qwen3moe.attention.value_length" ||
                          key == "qwen3moe.attention.key_length" ||  // then 32 / 2
                          key == "qwen3moe.rope.freq_base" || key == "qwen3moe.feed_forward_length";
    SCOPED_TRACE(key);
    if (optional) {
      EXPECT_TRUE(description.ok()) << description.error().to_string();
    } else if (key == "qwen3moe.attention.head_count_kv") {  // then as many as those of queries
      expect_bad(description, {"blk.0.attn_q.weight", "32 + 32 + 32 rows"});
    } else {
      expect_bad(description, {"a.gguf: " + key, "it is missing"});
    }
  }
}

TEST_F(GgufCheckpoint, NamesKeysOfAnotherType) {
  for (const auto& [key, value] : model_.metadata) {
    if (key.starts_with("general.") || key.starts_with("tokenizer.")) continue;
    GgufWriter other = model_;
    other.set(key, "text");
    const Result<Description> description = described(other);
    if (key == "qwen3moe.feed_forward_length") continue;  // read by dense layers only
    ASSERT_FALSE(description.ok()) << key;
    EXPECT_THAT(description.error().to_string(), HasSubstr(key));
  }
}

TEST_F(GgufCheckpoint, NamesEveryMissingTensor) {
  for (const testing::TensorBytes& tensor : model_.tensors) {
    if (tensor.name == "output.weight") continue;  // the embedding then serves as output
    GgufWriter without = model_;
    without.remove(tensor.name);
    const Result<Description> description = described(without);
    ASSERT_FALSE(description.ok()) << tensor.name;
    EXPECT_THAT(description.error().to_string(), HasSubstr(tensor.name));
  }
}

TEST_F(GgufCheckpoint, TiesTheOutputOfAFileWithoutOne) {
  GgufWriter without = model_;
  without.remove("output.weight");
  const Description description = testing::must(described(without));
  EXPECT_TRUE(description.tied);
}

TEST_F(GgufCheckpoint, NamesUnknownTensors) {
  GgufWriter more = model_;
  more.tensors.push_back({"blk.1.other.weight", DType::kF32, {4}, std::vector<std::byte>(16)});
  expect_bad(described(more), {"tensor 'blk.1.other.weight'", "the model does not use it"});
}

TEST_F(GgufCheckpoint, NamesTheStoredTensorOfAWrongShape) {
  GgufWriter other = model_;
  testing::TensorBytes& queries = other.at("blk.1.attn_q.weight");
  queries.shape = {16, 32};
  queries.bytes.resize(16 * 32 * 2);
  expect_bad(described(other),
             {"tensor 'blk.1.attn_q.weight (model.layers.1.self_attn.q_proj.weight)'"});
}

TEST_F(GgufCheckpoint, LeavesOutLayersForMultiTokenPrediction) {
  GgufWriter more = model_;
  more.set("qwen3moe.block_count", 3);
  more.set("qwen3moe.nextn_predict_layers", 1);
  for (const char* name : {"blk.2.attn_norm.weight", "blk.2.nextn.enorm.weight"})
    more.tensors.push_back({name, DType::kF32, {32}, std::vector<std::byte>(128)});
  const Description description = testing::must(described(more));
  EXPECT_EQ(description.layers.size(), 2u);
  ASSERT_EQ(description.ignored.size(), 1u);
  EXPECT_EQ(description.ignored[0].num_tensors, 2);
}

TEST_F(GgufCheckpoint, ListsKeysThatNoTableReads) {
  GgufWriter more = model_;
  more.set("qwen3moe.attention.unknown", 3);
  more.write(file("a.gguf"));
  const Checkpoint checkpoint = testing::must(Checkpoint::open(file("a.gguf")));
  ASSERT_TRUE(describe(checkpoint).ok());
  const std::vector<std::string> unread = checkpoint.state().gguf->unread();
  EXPECT_THAT(unread,
              ElementsAre("general.name", "qwen3moe.attention.unknown", "tokenizer.ggml.model"));
}

TEST_F(GgufCheckpoint, RefusesHeadsThatRotateInPart) {
  GgufWriter other = model_;
  other.set("qwen3moe.rope.dimension_count", 8);
  expect_unsupported(described(other), {"qwen3moe.rope.dimension_count", "16", "it is 8"});
}

TEST_F(GgufCheckpoint, AcceptsNumbersOfEachLayerThatAreEqual) {
  GgufWriter other = model_;
  other.set("qwen3moe.attention.head_count_kv", {1, 1});
  EXPECT_TRUE(described(other).ok());
  other.set("qwen3moe.attention.head_count_kv", {1, 2});
  expect_bad(described(other), {"qwen3moe.attention.head_count_kv"});
}

TEST_F(GgufCheckpoint, ListsKnownArchitectures) {
  GgufWriter other = model_;
  other.set("general.architecture", "bert");
  expect_unsupported(described(other), {"a.gguf: general.architecture", "qwen3moe", "'bert'"});
}

TEST_F(GgufCheckpoint, RefusesPathsThatHoldNoModel) {
  std::ofstream(file("text.gguf")) << "some text, not a model";
  expect_bad(Checkpoint::open(file("text.gguf")), {"text.gguf: header: needs 'GGUF' at byte 0"});
  std::ofstream(file("other")) << "some text, not a model";
  expect_bad(Checkpoint::open(file("other")), {"a GGUF file", "it is another file"});
  expect_bad(Checkpoint::open(file("absent.gguf")), {"needs a GGUF file; the file does not exist"});
}

TEST_F(GgufCheckpoint, OpensFilesWithoutEndingByTheirContent) {
  model_.write(file("sha256-0123"));
  EXPECT_TRUE(Checkpoint::open(file("sha256-0123")).ok());
}

TEST_F(GgufCheckpoint, NamesTheElementThatIsNotFinite) {
  GgufWriter other = model_;
  const uint16_t nan = 0x7fc0;
  std::memcpy(other.at("blk.1.ffn_up_exps.weight").bytes.data() + (2 * 16 * 32 + 33) * 2, &nan, 2);
  other.write(file("a.gguf"));
  const Checkpoint checkpoint = testing::must(Checkpoint::open(file("a.gguf")));
  expect_bad(checkpoint.read("model.layers.1.mlp.experts.2.up_proj.weight"),
             {"blk.1.ffn_up_exps.weight", "element [1, 1] is nan"});
}

class GgufBlocks : public GgufCheckpoint {
 protected:
  // Blocks [2, 3, 64] of q8_0 whose bytes are their index, with the scale `scale` in block 7.
  Tensors blocks(uint16_t scale) const {
    GgufWriter writer;
    writer.tensors = {{"x.weight", DType::kQ8_0, {2, 3, 64}, std::vector<std::byte>(12 * 34)}};
    for (size_t i = 0; i < 12 * 34; ++i)
      writer.tensors[0].bytes[i] = std::byte(i % 34 < 2 ? 0 : i / 34);
    std::memcpy(writer.tensors[0].bytes.data() + 7 * 34, &scale, 2);
    writer.write(file("x.gguf"));
    std::vector<TensorFile> files;
    files.push_back(testing::must(GgufFile::open(file("x.gguf"))).file);
    return testing::must(Tensors::from(std::move(files)));
  }
};

TEST_F(GgufBlocks, ReadsWholeBlocksOfARange) {
  const TensorData data = testing::must(blocks(0).read("x.weight", 3 * 64, 2 * 64));
  EXPECT_EQ(to_string(data.view), "q8_0 [128]");
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(data.view.data[i * 34 + 2], std::byte(6 + i));
}

TEST_F(GgufBlocks, NamesTheBlockWhoseScaleIsNotFinite) {
  const Tensors tensors = blocks(0x7c00);
  EXPECT_TRUE(tensors.read("x.weight", 0, 3 * 64).ok());
  expect_bad(tensors.read("x.weight"), {"tensor 'x.weight'", "finite scales", "[1, 0, 32]"});
}

TEST_F(GgufCheckpoint, GivesItsMetadataToReadersOfTheTokenizer) {
  model_.write(file("a.gguf"));
  const auto metadata = testing::must(gguf_metadata(file("a.gguf")));
  ASSERT_TRUE(metadata.has_value());
  EXPECT_EQ(testing::must(metadata->text({"tokenizer.ggml.model"})), "gpt2");
  ASSERT_TRUE(source_.write_config(folder_.path()).ok());
  EXPECT_FALSE(testing::must(gguf_metadata(folder_.path())).has_value());
}

}  // namespace
}  // namespace moracle::gguf_checkpoint_test
