#include "checkpoint/gguf/gguf_file.h"

#include <gmock/gmock.h>

#include <string>

#include "checkpoint/gguf_writer.h"
#include "expect_error.h"
#include "support/temporary_folder.h"

namespace moracle::gguf_file_test {
namespace {

using testing::expect_bad;
using testing::expect_unsupported;
using testing::GgufWriter;

Result<GgufHeader> parse(const std::string& bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());  // no byte behind the end
  return GgufFile::parse(std::as_bytes(std::span(exact)), "a.gguf");
}
Result<GgufHeader> parse(const GgufWriter& writer) {
  return parse(writer.image().bytes);
}

// Two tensors of blocks and one of floats.
GgufWriter small() {
  GgufWriter writer;
  writer.set("general.architecture", "qwen3moe");
  writer.set("qwen3moe.block_count", 2);
  writer.set("tokenizer.ggml.tokens", {"a", "b", "c"});
  writer.tensors = {{"x.weight", DType::kQ8_0, {3, 64}, std::vector<std::byte>(3 * 2 * 34)},
                    {"y.weight", DType::kF32, {5}, std::vector<std::byte>(20)},
                    {"z.weight", DType::kQ4K, {2, 3, 256}, std::vector<std::byte>(6 * 144)}};
  return writer;
}

std::string with(GgufWriter::Image image, const std::string& what, uint64_t value) {
  for (const GgufWriter::Field& field : image.fields) {
    if (field.what != what) continue;
    std::memcpy(image.bytes.data() + field.offset, &value, field.bytes);
    return image.bytes;
  }
  ADD_FAILURE() << "no field " << what;
  return {};
}

TEST(GgufFile, ReadsTensorsInThisLibrarysOrderOfDimensions) {
  const GgufWriter writer = small();
  const auto image = writer.image();
  const auto header = parse(image.bytes);
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  ASSERT_EQ(header->tensors.size(), 3u);
  const StoredTensor& x = header->tensors.at("x.weight");
  EXPECT_EQ(to_string(x.view), "q8_0 [3, 64]");
  EXPECT_EQ(x.first, image.data);
  EXPECT_EQ(header->tensors.at("y.weight").first, image.data + 224);
  EXPECT_EQ(to_string(header->tensors.at("z.weight").view), "q4_k [2, 3, 256]");
}

TEST(GgufFile, ReadsValuesOfEveryType) {
  GgufWriter writer = small();
  writer.set("text", "\xc3\xa9");
  writer.set("negative", -3);
  writer.set("large", uint64_t{1} << 40);
  writer.set("float", 0.1);
  writer.set("flag", true);
  writer.set("floats", {0.5, 1e-6});
  writer.set("empty", nlohmann::json::array());
  const auto header = parse(writer);
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  const nlohmann::json& metadata = header->metadata;
  EXPECT_EQ(metadata["text"], "\xc3\xa9");
  EXPECT_EQ(metadata["negative"], -3);
  EXPECT_EQ(metadata["large"], uint64_t{1} << 40);
  EXPECT_EQ(metadata["float"].get<double>(), 0.1);  // as config.json has it, not 0.10000000149
  EXPECT_EQ(metadata["flag"], true);
  EXPECT_EQ(metadata["floats"][1].get<double>(), 1e-6);
  EXPECT_TRUE(metadata["empty"].is_array() && metadata["empty"].empty());
  EXPECT_EQ(metadata["tokenizer.ggml.tokens"].size(), 3u);
}

TEST(GgufFile, ReadsNumbersOfEveryWidth) {
  const auto number_of = [](uint32_t type, std::string bytes) {
    GgufWriter writer;
    writer.set("n", 1);
    auto image = writer.image();
    const auto value = image.fields.back().offset;
    std::memcpy(image.bytes.data() + value - 4, &type, 4);
    image.bytes = image.bytes.substr(0, value) + bytes;
    const auto header = parse(image.bytes);
    EXPECT_TRUE(header.ok()) << header.error().to_string();
    return header.ok() ? header->metadata["n"] : nlohmann::json();
  };
  const std::string ones(8, '\xff');
  EXPECT_EQ(number_of(0, ones.substr(0, 1)), 255);
  EXPECT_EQ(number_of(1, ones.substr(0, 1)), -1);
  EXPECT_EQ(number_of(2, ones.substr(0, 2)), 65535);
  EXPECT_EQ(number_of(3, ones.substr(0, 2)), -1);
  EXPECT_EQ(number_of(4, ones.substr(0, 4)), UINT32_MAX);
  EXPECT_EQ(number_of(5, ones.substr(0, 4)), -1);
  EXPECT_EQ(number_of(10, ones), UINT64_MAX);
  EXPECT_EQ(number_of(11, ones), -1);
  EXPECT_EQ(number_of(12, std::string("\0\0\0\0\0\0\xf8\x3f", 8)), 1.5);
}

TEST(GgufFile, AcceptsVersion2AndOtherAlignments) {
  GgufWriter writer = small();
  writer.version = 2;
  EXPECT_TRUE(parse(writer).ok());
  writer.alignment = 256;
  writer.set("general.alignment", 256);
  const auto header = parse(writer);
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  EXPECT_EQ(header->tensors.at("y.weight").first % 256, 0u);
}

TEST(GgufFile, AcceptsMissingPaddingAtTheEnd) {
  GgufWriter writer = small();
  writer.tensors.pop_back();
  std::string bytes = writer.image().bytes;
  bytes.resize(bytes.size() - 12);
  EXPECT_TRUE(parse(bytes).ok());
  bytes.resize(bytes.size() - 1);
  expect_bad(parse(bytes), {"a.gguf: tensor 'y.weight'", "20 bytes for f32 [5]", "cut short"});
}

TEST(GgufFile, RefusesWhatIsNoGgufFile) {
  expect_bad(parse(std::string()), {"4 bytes for the magic", "the file has 0 bytes"});
  expect_bad(parse(std::string("PK\x03\x04 more")), {"'GGUF' at byte 0", "no GGUF file"});
  const auto image = small().image();
  expect_unsupported(parse(with(image, "version", 1)), {"version 2 or 3", "version 1"});
  expect_unsupported(parse(with(image, "version", 4)), {"version 2 or 3", "version 4"});
  expect_unsupported(parse(with(image, "version", 0x03000000)), {"big-endian"});
}

TEST(GgufFile, RefusesEveryCutInTheHeader) {
  const auto image = small().image();
  for (size_t size = 0; size < image.bytes.size() - 16; ++size) {
    const auto header = parse(image.bytes.substr(0, size));
    ASSERT_FALSE(header.ok()) << size;
    EXPECT_EQ(header.error().kind, ErrorKind::kBadFile) << header.error().to_string();
  }
}

// No number may crash the reader or lead outside the file, whatever it becomes.
TEST(GgufFile, ChecksEveryNumberOfTheHeader) {
  const auto image = small().image();
  for (const GgufWriter::Field& field : image.fields) {
    uint64_t old = 0;
    std::memcpy(&old, image.bytes.data() + field.offset, field.bytes);
    for (const uint64_t value : {uint64_t{0}, old + 1, old - 1, old + 32, old << 32, UINT64_MAX,
                                 uint64_t{1} << 62, uint64_t{1} << 31, UINT64_MAX >> 1}) {
      std::string bytes = image.bytes;
      std::memcpy(bytes.data() + field.offset, &value, field.bytes);
      const auto header = parse(bytes);
      if (!header) {
        EXPECT_EQ(header.error().file, "a.gguf");
        EXPECT_FALSE(header.error().need.empty() || header.error().fact.empty());
        continue;
      }
      for (const auto& [name, tensor] : header->tensors) {
        EXPECT_LE(tensor.first, bytes.size()) << field.what;
        EXPECT_LE(tensor.view.num_bytes(), bytes.size() - tensor.first) << field.what;
      }
    }
  }
}

// Found by the fuzzer: no byte of an empty tensor shows that the data is missing.
TEST(GgufFile, EmptyTensorBehindEndOfFileIsRefused) {
  GgufWriter writer;
  writer.set("general.architecture", "qwen3moe");
  writer.tensors = {{"x.weight", DType::kF32, {0}, {}}};
  const auto image = writer.image();
  ASSERT_TRUE(parse(image.bytes).ok());
  std::string bytes = image.bytes;
  bytes.resize(image.data - 1);
  expect_bad(parse(bytes), {"tensor 'x.weight'", "0 bytes for f32 [0]", "cut short"});
}

TEST(GgufFile, NamesTheBrokenField) {
  const auto image = small().image();
  const auto bad = [&](const char* what, uint64_t value, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(what);
    expect_bad(parse(with(image, what, value)), parts);
  };
  bad("number of tensors", 1 << 21, {"at most", "tensors; it has 2097152"});
  bad("number of pairs", 1 << 21, {"at most", "metadata pairs; it has 2097152"});
  bad("length of key qwen3moe.block_count", 1 << 20, {"metadata pair 1", "a key of at most"});
  bad("type of qwen3moe.block_count", 13,
      {"metadata 'qwen3moe.block_count'", "a type of values from 0 to 12; it is 13"});
  bad("array type of tokenizer.ggml.tokens", 77, {"tokenizer.ggml.tokens'", "it is 77"});
  bad("array length of tokenizer.ggml.tokens", uint64_t{1} << 60,
      {"tokenizer.ggml.tokens'", "values in the rest of the file"});
  bad("length of value in tokenizer.ggml.tokens", 1 << 20,
      {"tokenizer.ggml.tokens'", "a string of at most"});
  bad("length of name x.weight", 128, {"tensor 0 of the table", "a name of at most 127 bytes"});
  bad("length of name x.weight", 0, {"tensor 0 has none"});
  bad("rank of x.weight", 5, {"tensor 'x.weight'", "at most 4 dimensions; it has 5"});
  bad("dimension of x.weight", 48, {"tensor 'x.weight'", "a multiple of 32", "q8_0 [3, 48]"});
  bad("dimension of y.weight", uint64_t{1} << 63, {"tensor 'y.weight'", "dimensions below 2^63"});
  bad("dimension of y.weight", uint64_t{1} << 62, {"tensor 'y.weight'", "less than 2^63 bytes"});
  bad("dimension of y.weight", 4000, {"tensor 'y.weight'", "16000 bytes", "cut short"});
  bad("type of tensor y.weight", 99, {"tensor 'y.weight'", "unknown type 99"});
  bad("type of tensor y.weight", 4, {"tensor 'y.weight'", "type 4, Q4_2, which GGUF has removed"});
  bad("offset of y.weight", 225, {"tensor 'y.weight'", "a multiple of 32; it is 225"});
  bad("offset of y.weight", 192, {"tensor 'y.weight'", "overlap", "'x.weight', which ends at 204"});
  bad("offset of y.weight", 1 << 20, {"tensor 'y.weight'", "cut short"});
  bad("offset of y.weight", 256, {"tensor 'y.weight'", "without a gap"});
  expect_unsupported(parse(with(image, "type of tensor y.weight", 34)),
                     {"tensor 'y.weight'", "Q4_K", "type 34, TQ1_0"});
  expect_unsupported(parse(with(image, "array type of tokenizer.ggml.tokens", 9)),
                     {"tokenizer.ggml.tokens'", "arrays inside"});
}

TEST(GgufFile, RefusesRepeatedNames) {
  GgufWriter writer = small();
  writer.metadata.emplace_back("qwen3moe.block_count", 3);
  expect_bad(parse(writer), {"metadata 'qwen3moe.block_count'", "each key once"});
  writer.metadata.pop_back();
  writer.tensors.push_back(writer.tensors[0]);
  expect_bad(parse(writer), {"tensor 'x.weight'", "each name once"});
}

TEST(GgufFile, RefusesOtherAlignments) {
  GgufWriter writer = small();
  for (const nlohmann::json& value : {nlohmann::json(0), nlohmann::json(24), nlohmann::json(-32),
                                      nlohmann::json("32"), nlohmann::json(1 << 21)}) {
    writer.set("general.alignment", value);
    expect_bad(parse(writer), {"metadata 'general.alignment'", "a power of two"});
  }
}

TEST(GgufFile, RefusesBytesThatNoTensorHas) {
  expect_bad(parse(small().image().bytes + std::string(64, 'x')),
             {"data: needs a tensor for every byte", "the last 64 bytes"});
}

TEST(GgufFile, ReadsDataFromAnOpenFile) {
  const testing::TemporaryFolder folder;
  GgufWriter writer = small();
  writer.tensors[1].bytes[7] = std::byte{0x42};
  writer.write(folder.path() + "/a.gguf");
  const auto file = GgufFile::open(folder.path() + "/a.gguf");
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  std::byte bytes[4];
  ASSERT_TRUE(file->file.read("y.weight", 4, bytes).ok());
  EXPECT_EQ(bytes[3], std::byte{0x42});
}

}  // namespace
}  // namespace moracle::gguf_file_test
