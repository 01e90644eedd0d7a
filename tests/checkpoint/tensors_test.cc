#include "checkpoint/tensors/tensors.h"

#include <filesystem>
#include <string>

#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/safetensors/safetensors_folder.h"
#include "expect_error.h"
#include "moracle/text.h"
#include "synthetic_checkpoint.h"

namespace moracle::tensors_test {
namespace {

using nlohmann::json;
using testing::expect_bad;
using testing::expect_error;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

class TensorsTest : public ::testing::Test {
 protected:
  static int shard_of(const std::string& name) {
    return name.starts_with("model.layers.1.") ? 1 : 0;
  }

  // Writes two shards and an index. `edit` may change the index.
  Result<Tensors> open(const std::function<void(json&)>& edit = {}) {
    const Status written = checkpoint_.write_shards(folder_.path(), 2, shard_of, edit);
    EXPECT_TRUE(written.ok());
    return open_safetensors(folder_.path());
  }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  SyntheticCheckpoint checkpoint_ = SyntheticCheckpoint::int8();
  TemporaryFolder folder_;
  const std::string gate_ = SyntheticCheckpoint::expert(1, 0, "gate_proj.weight");
};

TEST_F(TensorsTest, ReadsSingleFileWithoutIndex) {
  ASSERT_TRUE(checkpoint_.write(folder_.path()).ok());
  const auto tensors = open_safetensors(folder_.path());
  ASSERT_TRUE(tensors.ok()) << tensors.error().to_string();
  EXPECT_EQ(tensors->all().size(), checkpoint_.tensors.size());
  EXPECT_EQ(tensors->file_of(gate_), file("model.safetensors"));
  EXPECT_EQ(tensors->file_of("absent"), file("model.safetensors"));
}

TEST_F(TensorsTest, FindsEveryTensorInItsShard) {
  const auto tensors = open();
  ASSERT_TRUE(tensors.ok()) << tensors.error().to_string();
  EXPECT_EQ(tensors->all().size(), checkpoint_.tensors.size());
  EXPECT_EQ(tensors->file_of(gate_), file("1.safetensors"));
  EXPECT_EQ(tensors->file_of("lm_head.weight"), file("0.safetensors"));
  EXPECT_EQ(tensors->file_of("absent"), folder_.path());
  for (const auto& [name, tensor] : checkpoint_.tensors) {
    const TensorView* view = tensors->find(name);
    ASSERT_NE(view, nullptr) << name;
    EXPECT_EQ(view->shape, tensor.shape);
    const auto data = tensors->read(name);
    ASSERT_TRUE(data.ok()) << data.error().to_string();
    EXPECT_EQ(data->view.shape, tensor.shape);
    EXPECT_EQ(std::memcmp(data->view.data, tensor.bytes.data(), tensor.bytes.size()), 0) << name;
  }
}

TEST_F(TensorsTest, ChecksTypeAndShapeOfTensor) {
  const auto tensors = open();
  ASSERT_TRUE(tensors.ok());
  EXPECT_TRUE(tensors->get(gate_, DType::kI8, {16, 32}).ok());
  expect_bad(tensors->get(gate_, DType::kI8, {32, 16}),
             {"1.safetensors", "tensor '" + gate_ + "'", "needs i8 [32, 16]; it is i8 [16, 32]"});
  expect_bad(tensors->get(gate_, DType::kU8, {16, 32}), {"needs u8 [16, 32]; it is i8 [16, 32]"});
  expect_bad(tensors->get("absent"),
             {folder_.path(), "tensor 'absent'", "needs to be in the file; it is missing"});
}

TEST_F(TensorsTest, RejectsFolderWithoutTensors) {
  expect_bad(open_safetensors(folder_.path()),
             {folder_.path(), "needs model.safetensors, or shards model-00001-of-0000N.safetensors",
              "the folder has neither"});
}

TEST_F(TensorsTest, ReadsNumberedShardsWithoutIndex) {
  ASSERT_TRUE(open().ok());
  std::filesystem::remove(file("model.safetensors.index.json"));
  std::filesystem::rename(file("0.safetensors"), file("model-00001-of-00002.safetensors"));
  std::filesystem::rename(file("1.safetensors"), file("model-00002-of-00002.safetensors"));
  const auto tensors = open_safetensors(folder_.path());
  ASSERT_TRUE(tensors.ok()) << tensors.error().to_string();
  EXPECT_EQ(tensors->all().size(), checkpoint_.tensors.size());
  EXPECT_EQ(tensors->file_of(gate_), file("model-00002-of-00002.safetensors"));
}

TEST_F(TensorsTest, NamesMissingNumberedShardsWithoutIndex) {
  ASSERT_TRUE(open().ok());
  std::filesystem::remove(file("model.safetensors.index.json"));
  std::filesystem::rename(file("0.safetensors"), file("model-00002-of-00003.safetensors"));
  expect_bad(
      open_safetensors(folder_.path()),
      {folder_.path() + ": needs all of 3 shards; download "
                        "model-00001-of-00003.safetensors, model-00003-of-00003.safetensors; "
                        "it has model-00002-of-00003.safetensors and no "
                        "model.safetensors.index.json"});
  std::filesystem::rename(file("1.safetensors"), file("model-00001-of-00002.safetensors"));
  expect_bad(open_safetensors(folder_.path()),
             {"needs model.safetensors.index.json, because the folder has shards of several sets"});
  std::filesystem::remove(file("model-00001-of-00002.safetensors"));
  std::filesystem::rename(file("model-00002-of-00003.safetensors"),
                          file("model-00150-of-00163.safetensors"));
  expect_bad(open_safetensors(folder_.path()), {"model-00004-of-00163.safetensors and 158 more"});
}

TEST_F(TensorsTest, NamesGitLfsPointer) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
      "size 4995584424\n";
  const std::string says =
      ": needs the file itself, from 'git lfs pull'; it is a Git LFS pointer, which names the file "
      "and does not hold it";
  ASSERT_TRUE(open().ok());
  folder_.write("1.safetensors", pointer);
  expect_bad(open_safetensors(folder_.path()), {file("1.safetensors") + says});
  folder_.write("model.safetensors.index.json", pointer);
  expect_bad(open_safetensors(folder_.path()), {file("model.safetensors.index.json") + says});
  folder_.write("config.json", pointer);
  expect_bad(Checkpoint::open(folder_.path()), {file("config.json") + says});
  folder_.write("tokenizer.json", pointer);
  expect_bad(Tokenizer::open(folder_.path()), {file("tokenizer.json") + says});
}

TEST_F(TensorsTest, NamesMissingShard) {
  ASSERT_TRUE(open().ok());
  std::filesystem::remove(file("1.safetensors"));
  expect_bad(open_safetensors(folder_.path()),
             {file("1.safetensors") + ": needs to exist, because model.safetensors.index.json "
                                      "lists this shard; the file does not exist"});
}

TEST_F(TensorsTest, NamesTruncatedShard) {
  ASSERT_TRUE(open().ok());
  std::filesystem::resize_file(file("1.safetensors"), 5000);
  expect_bad(open_safetensors(folder_.path()),
             {file("1.safetensors"), "the file may be cut short"});
}

TEST_F(TensorsTest, NamesListedTensorThatIsAbsent) {
  expect_bad(
      open([](json& map) { map["ghost"] = "1.safetensors"; }),
      {file("1.safetensors"), "tensor 'ghost'", "needs to be in this shard, as the index says"});
}

TEST_F(TensorsTest, NamesUnlistedTensor) {
  expect_bad(open([&](json& map) { map.erase(gate_); }),
             {file("1.safetensors"), "tensor '" + gate_ + "'", "needs to be listed for this shard",
              "model.safetensors.index.json"});
}

TEST_F(TensorsTest, NamesTensorListedForOtherShard) {
  expect_bad(
      open([&](json& map) { map[gate_] = "0.safetensors"; }),
      {file("1.safetensors"), "tensor '" + gate_ + "'", "needs to be listed for this shard"});
}

TEST_F(TensorsTest, NamesTensorInTwoShards) {
  // The index lists the tensor for one of the two shards only.
  ASSERT_TRUE(open().ok());
  std::filesystem::copy_file(file("1.safetensors"), file("0.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  expect_bad(open_safetensors(folder_.path()), {file("0.safetensors"), "tensor 'model.layers.1."});

  auto one = SafetensorsFile::open(file("1.safetensors"));
  auto two = SafetensorsFile::open(file("0.safetensors"));
  ASSERT_TRUE(one.ok() && two.ok());
  std::vector<TensorFile> files;
  files.push_back(*std::move(one));
  files.push_back(*std::move(two));
  expect_bad(Tensors::from(std::move(files)),
             {file("0.safetensors"),
              "needs to be in one shard only; it is also in " + file("1.safetensors")});
}

TEST_F(TensorsTest, RejectsIndexWithPathsOutsideFolder) {
  for (const json& shard :
       {json("../x.safetensors"), json("/etc/passwd"), json("sub/x.safetensors"), json(".."),
        json("."), json(""), json(std::string("a\0b", 3)), json(3), json(nullptr),
        json::array({"0.safetensors"}), json::object()}) {
    expect_bad(
        open([&](json& map) { map[gate_] = shard; }),
        {file("model.safetensors.index.json"), "weight_map." + gate_,
         "needs the name of a file in the same folder", shard.is_null() ? "it is null" : "it is "});
  }
}

TEST_F(TensorsTest, ReportsInvalidShardName) {
  std::filesystem::create_symlink("loop", file("loop"));
  for (const std::string& name : {std::string("loop"), std::string(300, 'x')}) {
    auto rename = [&](json& map) {
      for (json& shard : map) {
        if (shard == "1.safetensors") shard = name;
      }
    };
    expect_error(open(rename), ErrorKind::kIo, {file(name) + ": needs a readable file"});
  }
}

TEST_F(TensorsTest, RejectsIndexWithoutWeightMap) {
  ASSERT_TRUE(open().ok());
  const std::string index = file("model.safetensors.index.json");
  for (const char* text : {"{}", "{\"weight_map\":null}"}) {
    folder_.write("model.safetensors.index.json", text);
    expect_bad(open_safetensors(folder_.path()),
               {index + ": weight_map: needs an object; it is missing"});
  }
  folder_.write("model.safetensors.index.json", "{\"weight_map\":[]}");
  expect_bad(open_safetensors(folder_.path()), {index + ": weight_map: needs an object; it is []"});
  folder_.write("model.safetensors.index.json", "[");
  expect_bad(open_safetensors(folder_.path()), {index + ": line 1, column 2: needs valid JSON"});
}

TEST_F(TensorsTest, EmptyWeightMapHoldsNothing) {
  ASSERT_TRUE(open().ok());
  folder_.write("model.safetensors.index.json", "{\"weight_map\":{}}");
  const auto tensors = open_safetensors(folder_.path());
  ASSERT_TRUE(tensors.ok()) << tensors.error().to_string();
  EXPECT_TRUE(tensors->all().empty());
}

}  // namespace
}  // namespace moracle::tensors_test
