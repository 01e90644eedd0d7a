// xgrammar backend: calls the functions that its Python package registers with tvm-ffi.
#ifdef MORACLE_WITH_XGRAMMAR
#include "base/try.h"
#include "serve/grammar/ffi.h"
#include "serve/grammar/grammar.h"
#include "serve/grammar/token_bytes.h"

namespace moracle::serve {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 20;  // cache of compiled grammars
constexpr int64_t kMaxSpaces = 16;  // between two JSON tokens: some models indent forever
constexpr int64_t kAnyRollback = -1;

struct Functions {
  std::shared_ptr<const Ffi> ffi;
  FfiValue make_tokenizer, make_compiler, compile_schema, compile_tag, make_matcher, fill, accept;

  static Result<std::shared_ptr<const Functions>> load(const std::string& folder) {
    auto found = std::make_shared<Functions>();
    MORACLE_TRY(found->ffi, Ffi::load(folder));
    const Ffi& ffi = *found->ffi;
    MORACLE_TRY(found->make_tokenizer, ffi.method("TokenizerInfo", "__ffi_init__"));
    MORACLE_TRY(found->make_compiler, ffi.method("GrammarCompiler", "__ffi_init__"));
    MORACLE_TRY(found->compile_schema, ffi.method("GrammarCompiler", "compile_json_schema"));
    MORACLE_TRY(found->compile_tag, ffi.method("GrammarCompiler", "compile_structural_tag"));
    MORACLE_TRY(found->make_matcher, ffi.method("GrammarMatcher", "__ffi_init__"));
    MORACLE_TRY(found->fill, ffi.method("GrammarMatcher", "fill_next_token_bitmask"));
    MORACLE_TRY(found->accept, ffi.method("GrammarMatcher", "accept_token"));
    return std::shared_ptr<const Functions>(std::move(found));
  }
};

using SharedFunctions = std::shared_ptr<const Functions>;

class XgrammarMatcher : public GrammarMatcher {
 public:
  XgrammarMatcher(SharedFunctions functions, FfiValue matcher)
      : functions_(std::move(functions)), matcher_(std::move(matcher)) {}

  Status fill(TokenMask& mask) override {
    const std::span<uint32_t> words = mask.words();
    int64_t shape[] = {1, static_cast<int64_t>(words.size())}, strides[] = {shape[1], 1};
    DLTensor tensor{words.data(), {kDLCPU, 0}, 2, {kDLInt, 32, 1}, shape, strides, 0};
    const TVMFFIAny arguments[] = {matcher_.any(), ffi_tensor(tensor), ffi_int(0), ffi_bool(false)};
    MORACLE_TRY(const FfiValue changes, functions_->ffi->call(functions_->fill, arguments));
    if (!changes.is_true()) mask.allow_all();
    return {};
  }

  Status accept(int32_t id) override {
    const TVMFFIAny arguments[] = {matcher_.any(), ffi_int(id), ffi_bool(false)};
    MORACLE_TRY(const FfiValue accepted, functions_->ffi->call(functions_->accept, arguments));
    if (accepted.is_true()) return {};
    return Error{ErrorKind::kUnsupported, "", "", "a token that the grammar allows",
                 "the sampled token is another"};
  }

 private:
  const SharedFunctions functions_;
  const FfiValue matcher_;
};

class XgrammarGrammar : public Grammar {
 public:
  XgrammarGrammar(SharedFunctions functions, FfiValue grammar)
      : functions_(std::move(functions)), grammar_(std::move(grammar)) {}

  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    const TVMFFIAny arguments[] = {grammar_.any(), ffi_none(), ffi_bool(false),
                                   ffi_int(kAnyRollback), ffi_none()};
    MORACLE_TRY(FfiValue matcher, functions_->ffi->call(functions_->make_matcher, arguments));
    return std::unique_ptr<GrammarMatcher>(
        std::make_unique<XgrammarMatcher>(functions_, std::move(matcher)));
  }

 private:
  const SharedFunctions functions_;
  const FfiValue grammar_;
};

class XgrammarEngine : public GrammarEngine {
 public:
  XgrammarEngine(SharedFunctions functions, FfiValue compiler)
      : functions_(std::move(functions)), compiler_(std::move(compiler)) {}

  // Needs no lock: the compiler and its cache are thread-safe.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarText& source) const override {
    if (source.kind == GrammarText::Kind::kStructuralTag) {
      const TVMFFIAny arguments[] = {compiler_.any(), ffi_text(source.text)};
      return made(functions_->ffi->call(functions_->compile_tag, arguments),
                  "tools or a grammar that xgrammar supports");
    }
    const TVMFFIAny arguments[] = {compiler_.any(),     ffi_text(source.text),
                                   ffi_bool(true),                         // any whitespace
                                   ffi_none(),                             // indent
                                   ffi_none(),                             // separators
                                   ffi_bool(true),                         // strict
                                   ffi_int(kMaxSpaces), ffi_bool(false)};  // any order
    return made(functions_->ffi->call(functions_->compile_schema, arguments),
                "a JSON schema that xgrammar supports");
  }

 private:
  Result<std::shared_ptr<const Grammar>> made(Result<FfiValue> grammar, const char* need) const {
    if (!grammar) return Error{ErrorKind::kInvalidArgument, "", "", need, grammar.error().fact};
    return std::shared_ptr<const Grammar>(
        std::make_shared<const XgrammarGrammar>(functions_, *std::move(grammar)));
  }

  const SharedFunctions functions_;
  const FfiValue compiler_;
};

// All token texts as a tvm-ffi array.
Result<FfiValue> vocabulary(const Ffi& ffi, std::span<const std::string> texts) {
  std::vector<FfiValue> owned;
  std::vector<TVMFFIAny> items;
  for (const std::string& text : texts) {
    MORACLE_TRY(FfiValue bytes, ffi.bytes(text));
    owned.push_back(std::move(bytes));
    items.push_back(owned.back().any());
  }
  return ffi.array(items);
}

}  // namespace

Result<std::unique_ptr<GrammarEngine>> GrammarEngine::start(const Tokenizer& tokenizer,
                                                            int64_t vocab_size,
                                                            std::span<const int32_t> stop_ids,
                                                            const std::string& folder,
                                                            std::span<const int32_t> tag_ids) {
  MORACLE_TRY(const SharedFunctions functions,
              Functions::load(folder.empty() ? MORACLE_GRAMMAR_FOLDER : folder));
  const Ffi& ffi = *functions->ffi;
  MORACLE_TRY(const std::vector<std::string> texts, token_bytes(tokenizer, vocab_size, tag_ids));
  MORACLE_TRY(const FfiValue tokens, vocabulary(ffi, texts));
  std::vector<TVMFFIAny> stops;
  for (const int32_t id : stop_ids) stops.push_back(ffi_int(id));
  MORACLE_TRY(const FfiValue stop_tokens, ffi.array(stops));
  constexpr int kRawText = 0, kThreads = 1;
  const TVMFFIAny of_tokenizer[] = {tokens.any(), ffi_int(kRawText), ffi_int(vocab_size),
                                    stop_tokens.any(), ffi_bool(false)};
  MORACLE_TRY(const FfiValue info, ffi.call(functions->make_tokenizer, of_tokenizer));
  const TVMFFIAny of_compiler[] = {info.any(), ffi_int(kThreads), ffi_bool(true),
                                   ffi_int(kCacheBytes)};
  MORACLE_TRY(FfiValue compiler, ffi.call(functions->make_compiler, of_compiler));
  return std::unique_ptr<GrammarEngine>(
      std::make_unique<XgrammarEngine>(functions, std::move(compiler)));
}

}  // namespace moracle::serve
#endif
