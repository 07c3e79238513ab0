// Up/down counter with load. Saturates at zero and at MAX.
module counter #(
    parameter WIDTH = 8,
    parameter [WIDTH-1:0] MAX = {WIDTH{1'b1}}
) (
    input  logic             clk,
    input  logic             rst_n,
    input  logic             en,
    input  logic             up,
    input  logic             load,
    input  logic [WIDTH-1:0] load_value,
    output logic [WIDTH-1:0] count,
    output logic             at_max,
    output logic             at_min,
    output logic             saturated
);

    assign at_max = (count == MAX);
    assign at_min = (count == 0);

    always_ff @(posedge clk or negedge rst_n) begin
        if (!rst_n) begin
            count     <= '0;
            saturated <= 1'b0;
        end else if (load) begin
            count     <= (load_value > MAX) ? MAX : load_value;
            saturated <= (load_value > MAX);
        end else if (en && up) begin
            count     <= at_max ? count : count + 1'b1;
            saturated <= at_max;
        end else if (en) begin
            count     <= at_min ? count : count - 1'b1;
            saturated <= at_min;
        end else begin
            saturated <= 1'b0;
        end
    end

endmodule
