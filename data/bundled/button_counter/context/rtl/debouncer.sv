// Passes a change of `raw` on to `clean` once it has been stable for STABLE_CYCLES cycles.
module debouncer #(
    parameter STABLE_CYCLES = 16
) (
    input  logic clk,
    input  logic rst_n,  // asynchronous, active low
    input  logic raw,
    output logic clean
);

    logic [1:0] sync;
    logic [$clog2(STABLE_CYCLES + 1)-1:0] stable;

    always_ff @(posedge clk or negedge rst_n) begin
        if (!rst_n) begin
            sync   <= 2'b00;
            stable <= '0;
            clean  <= 1'b0;
        end else begin
            sync <= {sync[0], raw};
            if (sync[1] == clean) begin
                stable <= '0;
            end else if (stable == STABLE_CYCLES - 1) begin
                stable <= '0;
                clean  <= sync[1];
            end else begin
                stable <= stable + 1'b1;
            end
        end
    end

endmodule
