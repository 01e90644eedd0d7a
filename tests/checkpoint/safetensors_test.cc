#include "checkpoint/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "base/text.h"
#include "safetensors_writer.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::safetensors_test {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;

using Tensors = Result<std::map<std::string, TensorView>>;

std::string length_bytes(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

// Tests must not read a view of the result: the image is freed.
Tensors parse_raw(const std::string& image) {
  // An allocation of exactly this size lets AddressSanitizer detect a read past the end.
  const std::vector<char> exact(image.begin(), image.end());
  return SafetensorsFile::parse(std::as_bytes(std::span(exact)), "a.safetensors");
}

// The header, its length before it and `data_bytes` zeros after it.
Tensors parse(const std::string& header, size_t data_bytes = 0) {
  return parse_raw(length_bytes(header.size()) + header + std::string(data_bytes, '\0'));
}

// A tensor entry with the name and values of the arguments.
std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return str('"', name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
             ",\"data_offsets\":", offsets, "}");
}

// A JSON object of such members.
std::string object(std::initializer_list<std::string> members) {
  return str("{", join(members, ","), "}");
}

void expect_error(const Tensors& result, ErrorKind kind, const std::string& part) {
  ASSERT_FALSE(result) << "accepted, though it should say: " << part;
  EXPECT_EQ(result.error().kind, kind) << result.error().to_string();
  EXPECT_EQ(result.error().file, "a.safetensors");
  EXPECT_FALSE(result.error().place.empty()) << result.error().to_string();
  EXPECT_FALSE(result.error().need.empty()) << result.error().to_string();
  EXPECT_FALSE(result.error().fact.empty()) << result.error().to_string();
  EXPECT_THAT(result.error().to_string(), HasSubstr(part));
}
void expect_bad(const Tensors& result, const std::string& part) {
  expect_error(result, ErrorKind::kBadFile, part);
}

TEST(Safetensors, ReadsOutputOfWriter) {
  const auto image = testing::safetensors_image(
      {{"w", DType::kF32, {2, 3}, bytes_of<float>({1, 2, 3, 4, 5, 6})},
       {"odd", DType::kU8, {3}, bytes_of<uint8_t>({7, 8, 9})},
       {"scalar", DType::kI64, {}, bytes_of<int64_t>({-5})},
       {"none", DType::kBF16, {4, 0, 2}, {}},
       {"\"\\\n\xc3\xa9", DType::kF8E4M3, {2}, bytes_of<uint8_t>({1, 2})}},
      {{"format", "pt"}, {"note", "\"quotes\""}});
  ASSERT_TRUE(image) << image.error().to_string();
  const auto tensors = SafetensorsFile::parse(*image, "a.safetensors");
  ASSERT_TRUE(tensors) << tensors.error().to_string();
  ASSERT_EQ(tensors->size(), 5u);
  EXPECT_EQ(to_string(tensors->at("w")), "f32 [2, 3]");
  EXPECT_EQ(tensors->at("w").as<float>()[5], 6);  // the writer aligns the data to 8
  EXPECT_EQ(tensors->at("odd").as<uint8_t>()[2], 9);
  // The three bytes before `scalar` leave wider types unaligned.
  int64_t scalar = 0;
  std::memcpy(&scalar, tensors->at("scalar").data, sizeof scalar);
  EXPECT_EQ(scalar, -5);
  EXPECT_EQ(tensors->at("scalar").num_elements(), 1);
  EXPECT_EQ(tensors->at("none").num_bytes(), 0u);
  EXPECT_EQ(tensors->at("\"\\\n\xc3\xa9").num_bytes(), 2u);
}

TEST(Safetensors, ReadsEveryDType) {
  const std::pair<const char*, DType> known[] = {
      {"F64", DType::kF64},        {"F32", DType::kF32},        {"F16", DType::kF16},
      {"BF16", DType::kBF16},      {"I64", DType::kI64},        {"I32", DType::kI32},
      {"I16", DType::kI16},        {"I8", DType::kI8},          {"U8", DType::kU8},
      {"BOOL", DType::kBool},      {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
      {"F8_E8M0", DType::kF8E8M0},
  };
  for (const auto& [name, type] : known) {
    const auto size = static_cast<size_t>(bits(type) / 8 * 3);
    const auto tensors = parse(object({tensor("a", name, "[3]", str("[0,", size, "]"))}), size);
    ASSERT_TRUE(tensors) << tensors.error().to_string();
    EXPECT_EQ(tensors->at("a").dtype, type) << name;
  }
}

TEST(Safetensors, RejectsOtherDTypesAsUnsupported) {
  for (const char* dtype :
       {"U16", "U32", "U64", "F4", "F6_E2M3", "F6_E3M2", "C64", "f32", "", "?"}) {
    const auto tensors = parse(object({tensor("a", dtype, "[0]", "[0,0]")}));
    expect_error(
        tensors, ErrorKind::kUnsupported,
        str("tensor 'a': needs one of the dtypes F64, F32, F16, BF16, I64, I32, I16, I8, U8, "
            "BOOL, F8_E4M3, F8_E5M2, F8_E8M0; found dtype '",
            dtype, "'"));
  }
}

TEST(Safetensors, AcceptsEmptyHeaderPaddingAndAnyOrder) {
  EXPECT_TRUE(parse("{}"));
  EXPECT_TRUE(parse("{}      "));
  EXPECT_TRUE(parse(R"({"__metadata__":{}})"));
  EXPECT_TRUE(parse(R"({"a":{"data_offsets":[0,1],"shape":[1],"dtype":"I8"}})", 1));
  // The header is not in data order. Empty tensors lie at the start, in the middle and at the end.
  EXPECT_TRUE(parse(object({tensor("z", "I8", "[0]", "[3,3]"), tensor("b", "I8", "[2]", "[1,3]"),
                            tensor("m", "I8", "[0]", "[1,1]"), tensor("a", "I8", "[1]", "[0,1]"),
                            tensor("n", "I8", "[0]", "[0,0]")}),
                    3));
}

TEST(Safetensors, RejectsEveryTruncation) {
  const std::string header =
      object({R"("__metadata__":{"k":"v"})", tensor("a", "F32", "[2]", "[0,8]"),
              tensor("b", "I8", "[]", "[8,9]")});
  const std::string whole = length_bytes(header.size()) + header + std::string(9, 'x');
  ASSERT_TRUE(parse_raw(whole));
  for (size_t size = 0; size < whole.size(); ++size) {
    expect_bad(parse_raw(whole.substr(0, size)), "");
    // The header ends early, and its length agrees.
    if (size < header.size()) expect_bad(parse(header.substr(0, size), 9), "");
  }
  expect_bad(parse_raw(""),
             "byte 0: needs 8 bytes with the length of the header; the file has 0 bytes");
}

TEST(Safetensors, RejectsWrongHeaderLengths) {
  const std::string header = "{}";
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{100'000'000}, uint64_t{100'000'001}, uint64_t{1} << 30,
        uint64_t{1} << 63, std::numeric_limits<uint64_t>::max() - 8,
        std::numeric_limits<uint64_t>::max() - 7, std::numeric_limits<uint64_t>::max()}) {
    expect_bad(parse_raw(length_bytes(length) + header), str("it is ", length));
  }
  expect_bad(parse_raw(length_bytes(1) + header), "header, byte 9: needs valid JSON");
  expect_bad(parse_raw(length_bytes(0) + header), "the header is empty");
}

TEST(Safetensors, RejectsHeaderThatIsNotAJsonObject) {
  for (const char* header : {"[]", "1", "null", "\"a\"", " {}", "\xef\xbb\xbf{}"}) {
    expect_bad(parse(header), "header, byte 8: needs '{'");
  }
  for (const char* header : {"{", "{]", "{}x", "{},", "{}{}", "{\"a\"}", "{'a':1}", "{/**/}",
                             R"({"a":{"shape":[1e999]}})", R"({"a":NaN})"}) {
    expect_bad(parse(header), "needs valid JSON");
  }
  // The parser alone would stop at the NUL and miss the bytes after it.
  expect_bad(parse(std::string("{}\0 hidden", 10)),
             "header, byte 10: needs valid JSON; found a NUL byte");
}

TEST(Safetensors, RejectsNamesThatAreNotUtf8) {
  for (const char* name : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\\ud800", "tab\there"}) {
    expect_bad(parse(object({tensor(name, "I8", "[0]", "[0,0]")})), "needs valid JSON");
  }
}

TEST(Safetensors, RejectsDuplicateNames) {
  const std::string a = tensor("a", "I8", "[0]", "[0,0]");
  expect_bad(parse(object({a, a})), "tensor 'a': needs each name once; it occurs twice");
  expect_bad(parse(object({a, tensor("\\u0061", "I8", "[0]", "[0,0]")})), "tensor 'a'");
  expect_bad(parse(R"({"__metadata__":{},"__metadata__":{}})"), "header, __metadata__");
  expect_bad(parse(R"({"__metadata__":{"k":"1","k":"2"}})"), "'k' occurs twice");
  expect_bad(parse(R"({"a":{"dtype":"I8","dtype":"I8","shape":[0],"data_offsets":[0,0]}})"),
             "'dtype' occurs twice");
  expect_bad(parse(R"({"a":{"dtype":"I8","shape":[0],"shape":[0],"data_offsets":[0,0]}})"),
             "'shape' occurs twice");
}

TEST(Safetensors, RejectsMetadataOtherThanStrings) {
  for (const char* value : {"null", "1", "\"s\"", "[]", "true"}) {
    expect_bad(parse(str("{\"__metadata__\":", value, "}")),
               "header, __metadata__: needs an object; ");
  }
  for (const char* value : {"null", "1", "-1", "1.5", "{}", "[]", "false"}) {
    expect_bad(parse(str("{\"__metadata__\":{\"k\":", value, "}}")), "needs strings only; ");
  }
}

TEST(Safetensors, RejectsOtherStructure) {
  for (const char* value : {"null", "1", "\"s\"", "[]", "true"}) {
    expect_bad(parse(str("{\"a\":", value, "}")),
               "tensor 'a': needs an object with dtype, shape and data_offsets; ");
  }
  expect_bad(parse(R"({"a":{}})"), "dtype is missing");
  expect_bad(parse(R"({"a":{"dtype":"I8","data_offsets":[0,0]}})"), "shape is missing");
  expect_bad(parse(R"({"a":{"dtype":"I8","shape":[0]}})"), "data_offsets is missing");
  expect_bad(parse(R"({"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0],"x":0}})"), "found 'x'");
  expect_bad(parse(R"({"a":{"dtype":8}})"), "needs a string as dtype; found 8");
  expect_bad(parse(R"({"a":{"dtype":["I8"]}})"), "needs a string as dtype; found an array");
  expect_bad(parse(R"({"a":{"shape":4}})"), "needs an array as shape; found 4");
  expect_bad(parse(R"({"a":{"shape":"[4]"}})"), "needs an array as shape; found a string");
  expect_bad(parse(R"({"a":{"data_offsets":{}}})"), "an array as data_offsets; found an object");
}

TEST(Safetensors, RejectsImpossibleShapes) {
  auto with = [](const std::string& shape) {
    return parse(object({tensor("a", "F32", shape, "[0,4]")}), 4);
  };
  ASSERT_TRUE(with("[1]"));
  ASSERT_TRUE(with("[1,1,1,1,1,1,1,1]"));
  expect_bad(with("[1,1,1,1,1,1,1,1,1]"), "needs at most 8 dimensions");
  for (const char* size : {"-1", "-0", "-9223372036854775808", "1.5", "1e30", "1e0", "1.0",
                           "18446744073709551616", "\"1\"", "null", "true", "[1]", "{}"}) {
    expect_bad(with(str("[", size, "]")), "tensor 'a': needs non-negative integers in shape; ");
  }
  for (const char* size : {"9223372036854775808", "18446744073709551615"}) {
    expect_bad(with(str("[", size, "]")),
               str("needs dimensions below 2^63 in shape; found ", size));
  }
  for (const char* shape :
       {"[4611686018427387904,4]", "[4294967296,4294967296]", "[288230376151711744]",
        "[9223372036854775807]", "[4611686018427387904,4,0]", "[0,4611686018427387904,4]",
        "[65536,65536,65536,65536,65536]"}) {
    expect_bad(with(shape), "needs a shape of less than 2^63 bits; it is f32 [");
  }
  // The largest possible size: still an error about the data length.
  expect_bad(with("[288230376151711743]"), "needs 1152921504606846972 bytes");
}

TEST(Safetensors, RejectsImpossibleOffsets) {
  auto with = [](const std::string& offsets) {
    return parse(object({tensor("a", "F32", "[1]", offsets)}), 4);
  };
  ASSERT_TRUE(with("[0,4]"));
  for (const char* offsets : {"[]", "[0]", "[0,4,4]"}) {
    expect_bad(with(offsets), "tensor 'a': needs 2 numbers in data_offsets");
  }
  for (const char* offset : {"-4", "4.0", "\"4\"", "null", "[4]", "18446744073709551616"}) {
    expect_bad(with(str("[0,", offset, "]")), "needs non-negative integers in data_offsets; ");
  }
  expect_bad(with("[4,0]"), "needs a begin that is not after the end; data_offsets are [4, 0]");
  expect_bad(with("[0,3]"), "needs 4 bytes for f32 [1]; data_offsets are [0, 3], 3 bytes");
  expect_bad(with("[0,5]"), "needs 4 bytes for f32 [1]");
  expect_bad(with("[18446744073709551615,3]"), "not after the end");
  expect_bad(with("[1,5]"), "needs data_offsets within the 4 bytes of data");
  expect_bad(with("[18446744073709551611,18446744073709551615]"), "within the 4 bytes of data");
}

TEST(Safetensors, RejectsOverlapsHolesAndTrailingBytes) {
  auto two = [](const std::string& a, const std::string& b, const std::string& b_shape = "[2]") {
    return parse(object({tensor("a", "I8", "[2]", a), tensor("b", "I8", b_shape, b)}), 5);
  };
  // The header is 105 bytes long in all of these, so the data is bytes [113, 118).
  const std::string all = "needs a tensor for every byte of the data; no tensor has bytes ";
  expect_bad(two("[0,2]", "[1,3]"),
             "tensor 'b': needs data that does not overlap another tensor's; it begins at byte "
             "114, inside "
             "tensor 'a', which ends at byte 115");
  expect_bad(two("[0,2]", "[0,2]"), "does not overlap another tensor's");
  expect_bad(two("[0,2]", "[1,1]", "[0]"), "inside tensor 'a'");
  expect_bad(two("[0,2]", "[3,5]"), "byte 115: " + all + "[115, 116), after tensor 'a'");
  expect_bad(two("[3,5]", "[1,3]"), "byte 113: " + all + "[113, 114), after the header");
  expect_bad(two("[0,2]", "[2,4]"), "byte 117: " + all + "[117, 118), after tensor 'b'");
  expect_bad(two("[2,2]", "[0,2]", "[2]"), "needs 2 bytes for i8 [2]");
  expect_bad(parse("{}", 1), "byte 10: ");
}

TEST(Safetensors, BoundsNesting) {
  constexpr size_t kDepth = 100'000;
  std::string objects;
  for (size_t i = 0; i < kDepth; ++i) objects += "{\"a\":";
  expect_bad(parse(objects), "");
  expect_bad(parse("{\"a\":" + std::string(kDepth, '[')), "");
  expect_bad(parse(R"({"a":{"shape":)" + std::string(kDepth, '[')), "found an array");
  expect_bad(parse(R"({"__metadata__":{"k":)" + std::string(kDepth, '[')), "strings only");
}

TEST(Safetensors, KeepsMessagesShort) {
  const std::string name(1 << 20, 'n');
  for (const std::string& header :
       {object({tensor(name, "I8", "[1]", "[0,0]")}), "{\"" + name, "{\"a\":{\"" + name + "\":1}}",
        object({tensor("a", name, "[1]", "[0,0]")})}) {
    const Tensors result = parse(header);
    ASSERT_FALSE(result);
    EXPECT_LT(result.error().to_string().size(), 1000u);
  }
  EXPECT_THAT(parse(object({tensor("\\u001b[2J", "I8", "[1]", "[0,0]")})).error().place,
              HasSubstr("'\\x1b[2J'"));
}

TEST(Safetensors, ReadsHeaderOfManyTensors) {
  // 14 MB of header (1.4 MB under sanitizers): a quadratic reader would take hours.
  constexpr size_t kCount = 200'000 / (testing::Sample::kStep > 1 ? 10 : 1);
  std::string header = "{";
  for (size_t i = 0; i < kCount; ++i) {
    const size_t place = kCount - 1 - i;
    if (i > 0) header += ",";
    header += tensor(str("layers.", i), "I8", "[1]", str("[", place, ",", place + 1, "]"));
  }
  const auto tensors = parse(header + "}", kCount);
  ASSERT_TRUE(tensors) << tensors.error().to_string();
  EXPECT_EQ(tensors->size(), kCount);
}

class SafetensorsOnDisk : public ::testing::Test {
 protected:
  const testing::TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(SafetensorsOnDisk, OpensStreamedFile) {
  constexpr int64_t kRows = 3'000'001;  // more than one piece, and not a whole number of them
  const std::string path = folder_ + "/large.safetensors";
  auto count_up = [](std::span<std::byte> slice, size_t first_byte) {
    auto value = static_cast<uint32_t>(first_byte / 4);
    for (size_t i = 0; i < slice.size(); i += 4, ++value) std::memcpy(&slice[i], &value, 4);
  };
  const auto written = testing::write_safetensors(
      path, std::vector<testing::TensorStream>{{"a", DType::kI32, {kRows}, count_up},
                                               {"b", DType::kI32, {2, 1}, count_up}});
  ASSERT_TRUE(written) << written.error().to_string();
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened) << opened.error().to_string();
  const TensorFile file = *std::move(opened);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(to_string(file.tensors().at("a").view), str("i32 [", kRows, "]"));
  std::vector<int32_t> a(kRows), b(1);
  ASSERT_TRUE(file.read("a", 0, std::as_writable_bytes(std::span(a))));
  for (int64_t i = 0; i < kRows; ++i) ASSERT_EQ(a[i], i);
  ASSERT_TRUE(file.read("b", 4, std::as_writable_bytes(std::span(b))));
  EXPECT_EQ(b[0], 1);
}

TEST_F(SafetensorsOnDisk, ReportsFilesThatCannotBeOpened) {
  const std::string empty = folder_ + "/empty.safetensors";
  std::ofstream(empty).close();
  const std::pair<std::string, ErrorKind> cases[] = {{folder_, ErrorKind::kBadFile},
                                                     {folder_ + "/missing", ErrorKind::kIo},
                                                     {empty, ErrorKind::kBadFile}};
  for (const auto& [path, kind] : cases) {
    const auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().kind, kind) << file.error().to_string();
    EXPECT_EQ(file.error().file, path);
  }
}

TEST(SafetensorsWriter, RejectsInvalidTensors) {
  EXPECT_EQ(testing::safetensors_image({{"a", DType::kI4, {2}, {}}}).error().kind,
            ErrorKind::kUnsupported);
  EXPECT_EQ(testing::safetensors_image({{"a", DType::kI8, {2}, {}}}).error().kind,
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(testing::write_safetensors("/nowhere/at/all", std::vector<testing::TensorBytes>{})
                .error()
                .kind,
            ErrorKind::kIo);
}

}  // namespace
}  // namespace moracle::safetensors_test
