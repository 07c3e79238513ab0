module order_matching_engine #(
    parameter PRICE_WIDTH = 16
) (
    input                        clk,
    input                        rst,
    input                        start,
    input  [8*PRICE_WIDTH-1:0]   bid_orders,
    input  [8*PRICE_WIDTH-1:0]   ask_orders,
    output reg                   match_valid,
    output reg [PRICE_WIDTH-1:0] matched_price,
    output reg                   done,
    output reg                   latency_error
);
    localparam LATENCY = 21;  // from the clock that sees `start` to the one that sees `done`

    wire bids_sorted, asks_sorted;
    wire [8*PRICE_WIDTH-1:0] bids, asks;
    wire [PRICE_WIDTH-1:0] best_bid = bids[7*PRICE_WIDTH +: PRICE_WIDTH];
    wire [PRICE_WIDTH-1:0] best_ask = asks[0 +: PRICE_WIDTH];
    wire matched = best_bid >= best_ask;

    reg busy;
    reg [4:0] elapsed;
    // The sorters are idle one clock earlier than the engine: an order must not start in one and not in the other.
    wire begin_sort = start && !busy;

    sorting_engine #(.WIDTH(PRICE_WIDTH)) bid_sorter (
        .clk(clk), .rst(rst), .start(begin_sort), .in_data(bid_orders), .done(bids_sorted), .out_data(bids)
    );
    sorting_engine #(.WIDTH(PRICE_WIDTH)) ask_sorter (
        .clk(clk), .rst(rst), .start(begin_sort), .in_data(ask_orders), .done(asks_sorted), .out_data(asks)
    );

    always @(posedge clk or posedge rst)
        if (rst) begin
            {busy, elapsed} <= 0;
            {match_valid, matched_price, done, latency_error} <= 0;
        end else begin
            done <= 0;
            if (busy) begin
                elapsed <= elapsed + 1;
                if (bids_sorted && asks_sorted) begin
                    match_valid <= matched;
                    matched_price <= matched ? best_ask : {PRICE_WIDTH{1'b0}};
                    done <= 1;
                    latency_error <= elapsed != LATENCY - 1;
                    busy <= 0;
                end else if (elapsed >= LATENCY - 1) begin
                    // Too late already: say so without waiting for sorters that may never finish.
                    elapsed <= elapsed;
                    latency_error <= 1;
                end
            end else if (begin_sort) begin
                busy <= 1;
                elapsed <= 1;
                {match_valid, matched_price, latency_error} <= 0;
            end
        end
endmodule
