// libFuzzer: the bytes are a chat template, rendered on a fixed conversation. The result is a text
// or an Error, within the renderer's limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "moracle/model.h"

namespace moracle::testing::chat_template_fuzz {

int run(const uint8_t* data, size_t size) {
  static const std::vector<ChatMessage> kMessages = {
      {"system", "Be brief.\n"},
      {"user", "1+1?"},
      {"assistant", "<think>\nadd\n</think>\n\n2"},
      {"user", "Gr\xC3\xBC\xC3\x9F \xF0\x9F\x99\x82"},
  };
  std::string text(reinterpret_cast<const char*>(data), size);
  const auto chat = ChatTemplate::parse(std::move(text), "fuzz", {{"bos_token", "<s>"}});
  if (!chat) {
    if (chat.error().place.empty() && chat.error().fact.empty()) std::abort();
    return 0;
  }
  const auto rendered = chat->render(kMessages, true);
  if (!rendered && (rendered.error().place.empty() || rendered.error().file.empty())) std::abort();
  return 0;
}

}  // namespace moracle::testing::chat_template_fuzz
