// Values over time, drawn by uPlot. Loaded with the screens that draw something.
import { useMantineColorScheme } from "@mantine/core";
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { compact } from "../lib/format";

export interface Series {
  label: string;
  /** A colour of CSS, such as "var(--run)". */
  color: string;
  values: (number | null)[];
  fill?: boolean;
}

interface ChartProps {
  label: string;
  /** Seconds since 1970, ascending. */
  times: number[];
  series: Series[];
  height?: number;
  format?: (value: number) => string;
}

const resolved = (color: string): string => {
  const name = /^var\((.+)\)$/.exec(color)?.[1];
  return name ? getComputedStyle(document.body).getPropertyValue(name).trim() : color;
};

const clock = (time: number, step: number): string =>
  new Date(time * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}) });

export function Chart({ label, times, series, height = 150, format = compact }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const { colorScheme } = useMantineColorScheme();
  const drawn = useRef<uPlot | null>(null);
  const shape = JSON.stringify([series.map(({ label, color, fill }) => [label, color, fill]), height, colorScheme]);
  const data = [times, ...series.map(({ values }) => values)] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const [quiet, edge] = [resolved("var(--faint)"), resolved("var(--edge)")];
    const font = "11px Inter, system-ui, sans-serif";
    const axis = { stroke: quiet, font, ticks: { show: false }, grid: { stroke: edge, width: 1 } };
    const chart = new uPlot(
      {
        width: element.clientWidth,
        height,
        padding: [8, 22, 0, 0],
        cursor: { y: false, points: { size: 6 } },
        legend: { show: false },
        scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
        axes: [
          { ...axis, grid: { show: false }, space: 70, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)) },
          { ...axis, size: 50, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) },
        ],
        series: [
          {},
          ...series.map(({ label, color, fill }) => ({
            label,
            stroke: resolved(color),
            width: 1.5,
            points: { show: false },
            ...(fill ? { fill: `${resolved(color)}22` } : {}),
          })),
        ],
      },
      latest.current,
      element,
    );
    drawn.current = chart;
    const watch = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      chart.destroy();
      drawn.current = null;
    };
    // The chart is made again when its shape changes, and gets new data below.
  }, [shape]);
  useEffect(() => drawn.current?.setData(latest.current), [data]);
  return (
    <>
      <div ref={place} className="chart" role="img" aria-label={label} style={{ height }} />
      <div className="legend">
        {series.map((each) => <span key={each.label}><span className="dot" style={{ color: each.color }} />{each.label}</span>)}
      </div>
    </>
  );
}
