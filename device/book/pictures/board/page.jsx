// Draws the Grafana dashboard in configs/grafana.json with the panel components of the package @grafana/ui and data
// from a Prometheus server. The dashboard defines the panels: their types, positions, titles, queries, units, value
// mappings and line styles.
//
// The fragment of the page's URL contains the parameters prometheus=HOST:PORT, from= and to= (Unix seconds), and
// scrape= (the scrape interval in seconds).

import { createRoot } from "react-dom/client";
import {
  createDataFrame,
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  ThemeContext,
} from "@grafana/data";
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueTextMode,
  GlobalStyles,
  PanelChrome,
  TimeSeries,
} from "@grafana/ui";
import "@fontsource/inter/400.css";
import "@fontsource/inter/500.css";
import board from "../../../../configs/grafana.json";

const told = new URLSearchParams(location.hash.slice(1));
const [from, to, scrape] = ["from", "to", "scrape"].map((name) => Number(told.get(name)));

// Dimensions in pixels, except for the number of columns. The columns, row height and gaps are those of Grafana's grid.
const WIDTH = 1400, COLUMNS = 24, UNIT = 30, GAP = 8;
const COLUMN = (WIDTH - (COLUMNS - 1) * GAP) / COLUMNS;
const extent = (count, unit) => count * unit + (count - 1) * GAP;

// As in Grafana, there is one data point for every few pixels, and rates cover at least four scrapes.
const step = Math.max(scrape, Math.ceil((to - from) / 200));
const variables = {
  $__rate_interval: `${Math.max(step + scrape, 4 * scrape)}s`,
  $device: ".*",
  $job: ".*",
};
const theme = createTheme({ colors: { mode: "dark" } });

const filledIn = (text) =>
  Object.entries(variables).reduce((text, [name, value]) => text.replaceAll(name, value), text);

async function samples({ expr, legendFormat }) {
  const query = new URLSearchParams({ query: filledIn(expr), start: from, end: to, step });
  const answer = await fetch(`http://${told.get("prometheus")}/api/v1/query_range?${query}`);
  const { status, data, error } = await answer.json();
  if (status !== "success") {
    throw new Error(`${expr}: ${error}`);
  }
  return data.result.map(({ metric, values }) => ({
    name: legendFormat.replace(/{{\s*(\w+)\s*}}/g, (_, label) => metric[label] ?? ""),
    values: new Map(values.map(([time, value]) => [time, Number(value)])),
  }));
}

// Converts a series to the data frame that a panel expects. Points without a sample in Prometheus are null.
function frame({ name, values }, index, { defaults }) {
  const times = Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, n) => from + n * step);
  const config = { color: { mode: "palette-classic" }, ...defaults, displayName: name };
  const field = {
    name,
    type: FieldType.number,
    config,
    values: times.map((time) => {
      const value = values.get(time);
      return Number.isFinite(value) ? value : null;
    }),
  };
  field.display = getDisplayProcessor({ field, theme });
  const time = { name: "Time", type: FieldType.time, config: {}, values: times.map((time) => time * 1000) };
  time.display = getDisplayProcessor({ field: time, theme, timeZone: "utc" });
  const frame = createDataFrame({ fields: [time, field] });
  // The panel chooses the colour of a series by its index.
  frame.fields[1].state = { displayName: name, seriesIndex: index };
  return frame;
}

const hasValues = (frame) => frame.fields[1].values.some((value) => value !== null);

function Lines({ frames, width, height, legend }) {
  const ends = { from: dateTime(from * 1000), to: dateTime(to * 1000) };
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      width={width}
      height={height}
      timeRange={{ ...ends, raw: ends }}
      timeZone="utc"
      legend={legend}
    />
  );
}

function Values({ frames, width, height }) {
  const each = (height - (frames.length - 1) * GAP) / frames.length;
  return frames.map(({ fields: [, field] }, index) => {
    const value = field.display(field.values.findLast((value) => value !== null));
    return (
      <div key={index} style={{ marginBottom: GAP }}>
        <BigValue
          theme={theme}
          width={width}
          height={each}
          value={{ ...value, title: field.config.displayName }}
          colorMode={BigValueColorMode.Value}
          graphMode={BigValueGraphMode.None}
          textMode={BigValueTextMode.Auto}
          count={frames.length}
        />
      </div>
    );
  });
}

function Panel({ panel, frames }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: "absolute", left: x * (COLUMN + GAP), top: y * (UNIT + GAP) };
  const [width, height] = [extent(w, COLUMN), extent(h, UNIT)];
  if (panel.type === "row") {
    return (
      <div style={{ ...place, width, lineHeight: `${height}px`, fontSize: 16, fontWeight: 500 }}>{panel.title}</div>
    );
  }
  const Content = { timeseries: Lines, stat: Values }[panel.type];
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={width} height={height}>
        {(width, height) =>
          frames.some(hasValues) ? (
            <Content frames={frames.filter(hasValues)} width={width} height={height} legend={panel.options?.legend} />
          ) : (
            <div style={{ width, lineHeight: `${height}px`, textAlign: "center", color: theme.colors.text.secondary }}>
              {panel.fieldConfig.defaults.noValue ?? "No data"}
            </div>
          )}
      </PanelChrome>
    </div>
  );
}

async function drawn(panel) {
  const series = (await Promise.all((panel.targets ?? []).map(samples))).flat();
  const frames = series.map((one, index) => frame(one, index, panel.fieldConfig));
  return <Panel key={panel.id} panel={panel} frames={frames} />;
}

async function draw(place) {
  const panels = await Promise.all(board.panels.map(drawn));
  createRoot(place).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {panels}
    </ThemeContext.Provider>,
  );
}

const place = document.getElementById("board");
draw(place).catch((error) => (place.textContent = error));
