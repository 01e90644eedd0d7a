#include "serve/answers/responses_answer.h"

namespace moracle::serve {
namespace {

using PartKind = AnswerPart::Kind;

const char* id_prefix(PartKind kind) {
  return kind == PartKind::kText ? "msg_" : kind == PartKind::kCall ? "fc_" : "rs_";
}

Json text_part(PartKind kind, const std::string& text) {
  if (kind == PartKind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"annotations", Json::array()},
          {"logprobs", Json::array()},
          {"text", text}};
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(GenerationRequest& request, std::shared_ptr<Exchange> exchange,
                                 ResponseStore& store)
    : Answer(request, std::move(exchange)),
      id_(new_id("resp_")),
      model_(request.model),
      reply_fields_(std::move(request.reply_fields)),
      items_(std::move(request.items)),
      store_(store) {}

Json ResponsesAnswer::item(size_t index, bool is_open) const {
  const AnswerPart& part = choices_[0].parts[index];
  const bool is_last = index + 1 == choices_[0].parts.size();
  const bool is_cut = choices_[0].finish != Finish::kStop && is_last &&
                      (part.kind != PartKind::kCall || !Json::accept(part.text));
  const char* const status = is_open ? "in_progress" : is_cut ? "incomplete" : "completed";
  Json item = {{"id", item_ids_[index]}, {"status", status}};
  if (part.kind == PartKind::kCall) {
    item["type"] = "function_call";
    item["call_id"] = part.id;
    item["name"] = part.name;
    item["arguments"] = is_open ? "" : part.text;
    return item;
  }
  Json content = Json::array();
  if (!is_open) content.push_back(text_part(part.kind, part.text));
  if (part.kind == PartKind::kReasoning) {
    item["type"] = "reasoning";
    item["summary"] = Json::array();
    item["encrypted_content"] = nullptr;
  } else {
    item["type"] = "message";
    item["role"] = "assistant";
  }
  item["content"] = std::move(content);
  return item;
}

Json ResponsesAnswer::output() const {
  Json output = Json::array();
  for (size_t i = 0; i < item_ids_.size(); ++i) output.push_back(item(i, false));
  return output;
}

Json ResponsesAnswer::usage() const {
  const Choice& choice = choices_[0];
  return {{"input_tokens", choice.prompt_tokens},
          {"input_tokens_details",
           {{"cached_tokens", choice.reused_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", choice.new_tokens},
          {"output_tokens_details", {{"reasoning_tokens", choice.reasoning_tokens}}},
          {"total_tokens", choice.prompt_tokens + choice.new_tokens}};
}

Json ResponsesAnswer::reply(const char* status, Json output) const {
  Json reply = {{"id", id_},
                {"object", "response"},
                {"created_at", created()},
                {"status", status},
                {"error", nullptr},
                {"incomplete_details", nullptr},
                {"model", model_},
                {"output", std::move(output)},
                {"usage", nullptr}};
  reply.update(reply_fields_);
  return reply;
}

const char* ResponsesAnswer::final_status() const {
  return choices_[0].finish == Finish::kLength ? "incomplete" : "completed";
}

Json ResponsesAnswer::final_reply() const {
  Json json = reply(final_status(), output());
  if (choices_[0].finish == Finish::kLength)
    json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  else
    json["completed_at"] = seconds_now();
  json["usage"] = usage();
  return json;
}

void ResponsesAnswer::store(const Json& reply) {
  if (items_.is_null()) return;
  const size_t num_inputs = items_.size();
  for (const Json& item : reply["output"]) items_.push_back(item);
  store_.add(id_, {.items = dump(items_), .reply = dump(reply), .num_inputs = num_inputs});
}

void ResponsesAnswer::send_whole() {
  for (const AnswerPart& part : choices_[0].parts)
    item_ids_.push_back(new_id(id_prefix(part.kind)));
  const Json json = final_reply();
  store(json);
  exchange().reply({.body = dump(json)});
}

void ResponsesAnswer::send_event(const char* type, Json fields) {
  Json json = {{"type", type}, {"sequence_number", num_events_++}};
  json.update(fields);
  exchange().write(std::string("event: ") + type + "\ndata: " + dump(json) + "\n\n");
}

void ResponsesAnswer::start() {
  if (!start_stream()) return;
  const Json json = reply("in_progress", Json::array());
  send_event("response.created", {{"response", json}});
  send_event("response.in_progress", {{"response", json}});
}

void ResponsesAnswer::send(size_t, const Event&, std::span<const AnswerPiece> pieces) {
  start();
  for (const AnswerPiece& piece : pieces) {
    if (piece.begins) {
      close_item();
      open_item(piece);
    }
    send_delta(piece);
  }
}

void ResponsesAnswer::open_item(const AnswerPiece& piece) {
  item_ids_.push_back(new_id(id_prefix(piece.kind)));
  is_item_open_ = true;
  const size_t index = item_ids_.size() - 1;
  send_event("response.output_item.added", {{"output_index", index}, {"item", item(index, true)}});
  if (piece.kind == PartKind::kCall) return;
  send_event("response.content_part.added", {{"item_id", item_ids_[index]},
                                             {"output_index", index},
                                             {"content_index", 0},
                                             {"part", text_part(piece.kind, "")}});
}

void ResponsesAnswer::send_delta(const AnswerPiece& piece) {
  if (piece.text.empty()) return;
  Json fields = {{"item_id", item_ids_.back()}, {"output_index", item_ids_.size() - 1}};
  if (piece.kind != PartKind::kCall) fields["content_index"] = 0;
  fields["delta"] = piece.text;
  if (piece.kind == PartKind::kText) fields["logprobs"] = Json::array();
  send_event(piece.kind == PartKind::kText   ? "response.output_text.delta"
             : piece.kind == PartKind::kCall ? "response.function_call_arguments.delta"
                                             : "response.reasoning_text.delta",
             std::move(fields));
}

void ResponsesAnswer::close_item() {
  if (!std::exchange(is_item_open_, false)) return;
  const size_t index = item_ids_.size() - 1;
  const AnswerPart& part = choices_[0].parts[index];
  Json fields = {{"item_id", item_ids_[index]}, {"output_index", index}};
  if (part.kind == PartKind::kCall) {
    fields["name"] = part.name;
    fields["arguments"] = part.text;
    send_event("response.function_call_arguments.done", std::move(fields));
  } else {
    fields["content_index"] = 0;
    Json text = fields;
    text["text"] = part.text;
    if (part.kind == PartKind::kText) text["logprobs"] = Json::array();
    send_event(
        part.kind == PartKind::kText ? "response.output_text.done" : "response.reasoning_text.done",
        std::move(text));
    fields["part"] = text_part(part.kind, part.text);
    send_event("response.content_part.done", std::move(fields));
  }
  send_event("response.output_item.done", {{"output_index", index}, {"item", item(index, false)}});
}

void ResponsesAnswer::finish_stream() {
  close_item();
  const Json json = final_reply();
  store(json);
  send_event(choices_[0].finish == Finish::kLength ? "response.incomplete" : "response.completed",
             {{"response", json}});
  exchange().end();
}

void ResponsesAnswer::send_failure(const ApiError& error) {
  Json json = reply("failed", output());
  json["error"] = {{"code", error.status < 500 ? "invalid_prompt" : "server_error"},
                   {"message", error.message}};
  json["usage"] = usage();
  send_event("response.failed", {{"response", std::move(json)}});
}

}  // namespace moracle::serve
