#pragma once

#include <string_view>

namespace millrace {

/// The dashboard: one HTML page that needs nothing else but this server. It reads /introspect and
/// /series. Its source is actors/dashboard/page.html.
[[nodiscard]] std::string_view dashboard_page();

} // namespace millrace
