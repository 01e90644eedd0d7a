// Tests the writer of GGUF files: what it writes, GgufFile reads.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/expect_error.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/write/gguf_writer.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::create_gguf_test {
namespace {

using nlohmann::json;
using testing::expect_error;
using testing::must;

class CreateGguf : public ::testing::Test {
 protected:
  Result<RangedFile> create(const json& metadata, const std::vector<GgufEntry>& entries) const {
    return create_gguf(path_, metadata, entries);
  }
  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/new.gguf";
};

TEST_F(CreateGguf, FileHasMetadataAndTensorsAsGiven) {
  const json metadata = {{"a.whole", 4294967295u},   {"a.negative", -3},
                         {"a.float", 0.1},           {"a.flag", true},
                         {"a.text", "x\ny"},         {"a.texts", {"", "b"}},
                         {"a.flags", {true, false}}, {"a.numbers", {1, -2, 3}},
                         {"a.floats", {0.5, -1e-6}}, {"a.empty", json::array()}};
  const std::vector<GgufEntry> entries = {
      {"v", DType::kF32, {3}}, {"m", DType::kQ8_0, {2, 64}}, {"stack", DType::kBF16, {2, 3, 5}}};
  RangedFile file = must(create(metadata, entries));
  std::vector<std::byte> bytes(2 * 2 * 34);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 100);
  ASSERT_TRUE(file.write("m", std::span(bytes).subspan(68), 68));
  ASSERT_TRUE(file.write("m", std::span(bytes).first(68)));
  ASSERT_TRUE(file.write("v", std::span(bytes).first(12)));
  ASSERT_TRUE(file.write("stack", std::span(bytes).first(60)));
  ASSERT_TRUE(file.finish());
  const GgufFile read = must(GgufFile::open(path_));
  EXPECT_EQ(read.metadata, metadata);
  ASSERT_EQ(read.file.tensors().size(), 3u);
  for (const GgufEntry& entry : entries) {
    const StoredTensor& tensor = read.file.tensors().at(entry.name);
    EXPECT_EQ(tensor.view.dtype, entry.dtype);
    EXPECT_EQ(tensor.view.shape, entry.shape);
    EXPECT_EQ(tensor.first % 32, 0u);
    std::vector<std::byte> got(tensor.view.num_bytes());
    ASSERT_TRUE(read.file.read(entry.name, 0, got));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin())) << entry.name;
  }
}

TEST_F(CreateGguf, FileCanBeOpenedBeforeItsTensorsAreWritten) {
  const RangedFile file = must(create({}, {{"v", DType::kF32, {3}}, {"w", DType::kF32, {9}}}));
  EXPECT_EQ(must(GgufFile::open(path_)).file.tensors().size(), 2u);
  EXPECT_EQ(file.file_bytes() % 32, 0);
}

TEST_F(CreateGguf, RefusesWhatGgufCannotHold) {
  const GgufEntry plain = {"v", DType::kF32, {3}};
  expect_error(create({{"k", 4294967296u}}, {}), ErrorKind::kUnsupported,
               {"metadata 'k'", "an integer of 32 bits", "4294967296"});
  expect_error(create({{"k", nullptr}}, {}), ErrorKind::kUnsupported, {"metadata 'k'", "null"});
  expect_error(create({{"k", {1, "a"}}}, {}), ErrorKind::kUnsupported, {"values of one type"});
  expect_error(create({}, {plain, plain}), ErrorKind::kUnsupported, {"'v'", "each name once"});
  expect_error(create({}, {{"v", DType::kQ4K, {2, 128}}}), ErrorKind::kUnsupported,
               {"'v'", "a multiple of 256 columns for q4_k"});
  expect_error(create({}, {{"v", DType::kF8E4M3, {2}}}), ErrorKind::kUnsupported,
               {"a type of GGUF", "f8_e4m3"});
  expect_error(create({}, {{std::string(64, 'n'), DType::kF32, {2}}}), ErrorKind::kUnsupported,
               {"a name of at most 63 bytes"});
  expect_error(create({}, {{"v", DType::kF32, {1, 1, 1, 1, 1}}}), ErrorKind::kUnsupported,
               {"1 to 4 dimensions"});
  EXPECT_FALSE(std::filesystem::exists(path_));
  must(create({}, {plain}));
  expect_error(create({}, {plain}), ErrorKind::kIo, {path_, "a new file"});
}

}  // namespace
}  // namespace moracle::create_gguf_test
