// SPI master, four modes, most significant bit first.
module spi_master #(
  parameter WIDTH = 8
) (
  input  logic             clk,
  input  logic             rst_n,
  input  logic             start,
  input  logic [WIDTH-1:0] tx_data,
  input  logic             cpol,
  input  logic             cpha,
  input  logic [7:0]       clk_div,
  output logic             busy,
  output logic             done,
  output logic [WIDTH-1:0] rx_data,
  output logic             sclk,
  output logic             mosi,
  output logic             cs_n,
  input  logic             miso
);

  localparam EDGES  = 2 * WIDTH;
  localparam EDGE_W = $clog2(EDGES + 1);

  logic              accept;
  logic              tick;
  logic              cpha_q;
  logic [EDGE_W-1:0] edge_count;  // inversions of sclk so far
  logic [WIDTH-1:0]  tx_shift;
  logic [WIDTH-1:0]  rx_shift;
  logic              leading;
  logic              sample_edge;

  assign accept      = start;
  assign leading     = !edge_count[0];
  assign sample_edge = leading;

  spi_clkgen clkgen (
    .clk  (clk),
    .rst_n(rst_n),
    .start(accept),
    .run  (busy),
    .div  (clk_div),
    .tick (tick)
  );

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      busy       <= 1'b0;
      done       <= 1'b0;
      rx_data    <= '0;
      sclk       <= 1'b0;
      mosi       <= 1'b0;
      cs_n       <= 1'b1;
      cpha_q     <= 1'b0;
      edge_count <= '0;
      tx_shift   <= '0;
      rx_shift   <= '0;
    end else begin
      if (!busy) sclk <= cpol;
      if (accept) begin
        busy       <= 1'b1;
        cs_n       <= 1'b0;
        cpha_q     <= cpha;
        edge_count <= '0;
        if (cpha) begin
          mosi     <= 1'b0;
          tx_shift <= tx_data;
        end else begin
          mosi     <= tx_data[WIDTH-1];
          tx_shift <= {tx_data[WIDTH-2:0], 1'b0};
        end
      end else if (tick) begin
        if (edge_count == EDGES) begin
          busy    <= 1'b0;
          cs_n    <= 1'b1;
          mosi    <= 1'b0;
          rx_data <= rx_shift;
          done    <= 1'b1;
        end else begin
          sclk       <= !sclk;
          edge_count <= edge_count + 1'b1;
          if (sample_edge) begin
            rx_shift <= {miso, rx_shift[WIDTH-1:1]};
          end else begin
            mosi     <= tx_shift[WIDTH-1];
            tx_shift <= {tx_shift[WIDTH-2:0], 1'b0};
          end
        end
      end else begin
        done <= 1'b0;
      end
    end
  end

endmodule
